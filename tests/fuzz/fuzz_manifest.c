/*
 * Manifests of checkpoints.  Input: a manifest's text behind its hash, which is put in front of it
 * here, so that the fuzzer comes past it; and the input as it is.
 *
 * What must hold: a text is refused with a sentence that can be shown, or gives a manifest whose
 * own text gives the same manifest.
 */
#include <assert.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/snapshot/manifest.h"
#include "proto/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const struct manifest *m)
{
        struct manifest again;
        char *text;
        int r = manifest_format(m, &text);

        assert(r == 0);
        r = manifest_parse(text, strlen(text), &again, NULL);
        assert(r == 0 && memcmp(m, &again, sizeof(again)) == 0);
        free(text);
}

static void check(const char *text, size_t size)
{
        struct fault fault = { 0 };
        struct manifest m;

        memset(&m, 0, sizeof(m));
        int r = manifest_parse(text, size, &m, &fault);
        if (r == 0)
                check_round_trip(&m);
        else
                assert(r == ZERO_EIO && fault.text[0] && text_printable(fault.text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char hex[2 * MANIFEST_HASH + 1], *text = malloc(size + 128);
        uint8_t hash[MANIFEST_HASH];
        size_t n;

        manifest_hash(hash, data, size);
        sodium_bin2hex(hex, sizeof(hex), hash, sizeof(hash));
        n = (size_t)sprintf(text, "{\n  \"blake2b\": \"%s\",", hex);
        memcpy(text + n, data, size);
        check(text, n + size);
        check((const char *)data, size);
        free(text);
        return 0;
}
