/* A manifest as text; see manifest.h. */
#include "daemon/store/snapshot/manifest.h"

#include <errno.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "proto/dtype.h"
#include "proto/text.h"

enum { HEX = 2 * MANIFEST_HASH + 1 };

/* The text begins with `opening`, 64 digits and `closing`; the hash covers all that follows. */
static const char opening[] = "{\n  \"blake2b\": \"", closing[] = "\",";
enum {
        OPENING = sizeof(opening) - 1,
        CLOSING = sizeof(closing) - 1,
        PREFIX = OPENING + HEX - 1 + CLOSING,
};

DEFINE_CLEANUP(json_t *, json_decref)

/* ---- writing ---- */

static json_t *hex_json(const uint8_t *hash)
{
        char hex[HEX];

        return json_string(sodium_bin2hex(hex, sizeof(hex), hash, MANIFEST_HASH));
}

static json_t *number(uint64_t n)
{
        return json_integer((json_int_t)n);
}

static json_t *file_json(const char *name, uint64_t bytes, const uint8_t *hash)
{
        return json_pack("{s:s, s:o, s:o}", "file", name, "bytes", number(bytes), "hash",
                         hex_json(hash));
}

static json_t *shards_json(const struct manifest *m)
{
        json_t *shards = json_array();
        char name[MANIFEST_FILE_NAME];

        for (uint32_t o = 0; o < m->n_owners; o++) {
                manifest_shard_name(o, m->n_owners, name);
                json_t *shard = file_json(name, m->shards[o].bytes, m->shards[o].hash);
                json_object_set_new(shard, "node", json_string(m->shards[o].node));
                json_array_append_new(shards, shard);
        }
        return shards;
}

static json_t *manifest_json(const struct manifest *m)
{
        json_t *j = json_object();

        json_object_set_new(j, "format", number(MANIFEST_FORMAT));
        json_object_set_new(j, "zerod", json_string(ZEROD_VERSION));
        json_object_set_new(j, "job", json_string(m->job.name));
        json_object_set_new(j, "uid", number(m->job.uid));
        json_object_set_new(j, "version", number(m->version));
        json_object_set_new(j, "attempt", number(m->attempt));
        json_object_set_new(j, "created_ms", number(m->created_ms));
        json_object_set_new(j, "world_size", number(m->job.world_size));
        json_object_set_new(j, "reduce_dtype", json_string(dtype_name(m->job.reduce_dtype)));
        if (m->job.accumulate == ZERO_ACCUMULATE_WIRE)
                json_object_set_new(j, "accumulate", json_string("wire"));
        json_object_set_new(j, "parameters", number(m->parameters));
        json_object_set_new(j, "optimizers", json_string(m->optimizers));
        json_object_set_new(j, "owners", number(m->n_owners));
        json_object_set_new(j, "model_hash", hex_json(m->model_hash));
        json_object_set_new(j, "layout",
                            file_json(MANIFEST_LAYOUT_FILE, m->layout_bytes, m->layout_hash));
        json_object_set_new(j, "shards", shards_json(m));
        return j;
}

void manifest_hash(uint8_t ret[static MANIFEST_HASH], const void *p, size_t n)
{
        crypto_generichash(ret, MANIFEST_HASH, p, n, NULL, 0);
}

static void text_hash(const char *text, size_t size, char ret_hex[static HEX])
{
        uint8_t hash[MANIFEST_HASH];

        manifest_hash(hash, text, size);
        sodium_bin2hex(ret_hex, HEX, hash, sizeof(hash));
}

int manifest_format(const struct manifest *m, char **ret_text)
{
        CLEANUP(cleanup_json_decref) json_t *j = manifest_json(m);
        CLEANUP(cleanup_free) char *body = json_dumps(j, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        char hex[HEX], *text;

        if (!body)
                return -ENOMEM;
        size_t size = strlen(body) - 1; /* without the brace, which `opening` has */
        text_hash(body + 1, size, hex);
        text = malloc(PREFIX + size + 1);
        if (!text)
                return -ENOMEM;
        snprintf(text, PREFIX + size + 1, "%s%s%s%s", opening, hex, closing, body + 1);
        *ret_text = text;
        return 0;
}

/* ---- reading ---- */

static const char *text_flaw(const char *text, size_t size)
{
        char hex[HEX];

        if (size <= PREFIX || size > MANIFEST_BYTES_MAX || memchr(text, 0, size))
                return "it is no manifest";
        if (memcmp(text, opening, OPENING) != 0 ||
            memcmp(text + OPENING + HEX - 1, closing, CLOSING) != 0)
                return "it is no manifest";
        text_hash(text + PREFIX, size - PREFIX, hex);
        if (memcmp(hex, text + OPENING, HEX - 1) != 0)
                return "its checksum is wrong";
        return NULL;
}

static bool get_number(const json_t *j, const char *key, uint64_t most, uint64_t *ret)
{
        const json_t *n = json_object_get(j, key);

        if (!json_is_integer(n) || json_integer_value(n) < 0 ||
            (uint64_t)json_integer_value(n) > most)
                return false;
        *ret = (uint64_t)json_integer_value(n);
        return true;
}

static bool get_number_32(const json_t *j, const char *key, uint32_t least, uint32_t most,
                          uint32_t *ret)
{
        uint64_t n;

        if (!get_number(j, key, most, &n) || n < least)
                return false;
        *ret = (uint32_t)n;
        return true;
}

static bool get_text(const json_t *j, const char *key, char *ret, size_t size)
{
        const char *text = json_string_value(json_object_get(j, key));

        if (!text || strlen(text) >= size || !text_printable(text))
                return false;
        snprintf(ret, size, "%s", text);
        return true;
}

static bool get_hash(const json_t *j, const char *key, uint8_t ret[static MANIFEST_HASH])
{
        const char *hex = json_string_value(json_object_get(j, key));
        size_t n;

        return hex && strlen(hex) == HEX - 1 &&
               sodium_hex2bin(ret, MANIFEST_HASH, hex, HEX - 1, NULL, &n, NULL) == 0 &&
               n == MANIFEST_HASH;
}

static bool get_file(const json_t *j, const char *name, uint64_t *ret_bytes, uint8_t *ret_hash)
{
        char file[MANIFEST_FILE_NAME];

        return get_text(j, "file", file, sizeof(file)) && strcmp(file, name) == 0 &&
               get_number(j, "bytes", INT64_MAX, ret_bytes) && get_hash(j, "hash", ret_hash);
}

static bool get_shards(const json_t *j, struct manifest *m)
{
        const json_t *shards = json_object_get(j, "shards");
        char name[MANIFEST_FILE_NAME];

        if (json_array_size(shards) != m->n_owners)
                return false;
        for (uint32_t o = 0; o < m->n_owners; o++) {
                struct manifest_shard *s = &m->shards[o];
                const json_t *shard = json_array_get(shards, o);

                manifest_shard_name(o, m->n_owners, name);
                if (!get_file(shard, name, &s->bytes, s->hash) ||
                    !get_text(shard, "node", s->node, sizeof(s->node)))
                        return false;
        }
        return true;
}

static bool get_dtype(const json_t *j, const char *key, enum zero_dtype *ret)
{
        const char *name = json_string_value(json_object_get(j, key));

#define X(dtype, code, bytes, word)            \
        if (name && strcmp(name, word) == 0) { \
                *ret = ZERO_##dtype;           \
                return true;                   \
        }
        ZERO_DTYPE_MAP(X)
#undef X
        return false;
}

/* Only a manifest of a job with the option has it: the release before restores such a job, too. */
static bool get_accumulate(const json_t *j, enum zero_accumulate *ret)
{
        const json_t *word = json_object_get(j, "accumulate");

        *ret = word ? ZERO_ACCUMULATE_WIRE : ZERO_ACCUMULATE_FP32;
        return !word || (json_is_string(word) && strcmp(json_string_value(word), "wire") == 0);
}

static bool get_manifest(const json_t *j, struct manifest *m)
{
        return get_text(j, "job", m->job.name, sizeof(m->job.name)) &&
               get_number_32(j, "uid", 0, UINT32_MAX, &m->job.uid) &&
               get_number(j, "version", INT64_MAX, &m->version) &&
               get_number(j, "attempt", INT64_MAX, &m->attempt) &&
               get_number(j, "created_ms", INT64_MAX, &m->created_ms) &&
               get_number_32(j, "world_size", 1, ZERO_RANK_MAX, &m->job.world_size) &&
               get_dtype(j, "reduce_dtype", &m->job.reduce_dtype) &&
               get_accumulate(j, &m->job.accumulate) &&
               get_number(j, "parameters", INT64_MAX, &m->parameters) &&
               get_number_32(j, "owners", 1, ZERO_NODE_MAX, &m->n_owners) &&
               get_hash(j, "model_hash", m->model_hash) &&
               get_file(json_object_get(j, "layout"), MANIFEST_LAYOUT_FILE, &m->layout_bytes,
                        m->layout_hash) &&
               get_shards(j, m);
}

int manifest_parse(const char *text, size_t size, struct manifest *ret, struct fault *fault)
{
        CLEANUP(cleanup_json_decref) json_t *j = NULL;
        struct manifest m = { .version = 0 };
        const char *flaw = text_flaw(text, size);
        uint64_t format;

        if (!flaw)
                j = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
        if (!flaw && !j)
                flaw = "it cannot be read";
        if (!flaw && (!get_number(j, "format", UINT32_MAX, &format) || format < MANIFEST_FORMAT))
                flaw = "it has no format that this release of zerod reads";
        if (!flaw && format > MANIFEST_FORMAT)
                flaw = "a newer release of zerod wrote it: restore it with that release";
        if (!flaw && !get_manifest(j, &m))
                flaw = "it makes no sense";
        if (flaw)
                return fault_set(fault, ZERO_EIO, "%s: %s", MANIFEST_FILE, flaw);
        *ret = m;
        return 0;
}

void manifest_shard_name(uint32_t owner, uint32_t n_owners, char ret[static MANIFEST_FILE_NAME])
{
        snprintf(ret, MANIFEST_FILE_NAME, "shard-%05u-of-%05u", owner, n_owners);
}
