/*
 * Replays a corpus: every file given, and every file of every directory given, goes to the
 * fuzz target once, and so does each of its variants.  Fails if there was nothing to replay.
 *
 * Rule: each input lies in memory of exactly its size, so that the address sanitizer sees a
 * read beyond its end.
 */
#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replayed, variants;

/* Variant `number` of an input, counted from 0, in memory that the caller frees; NULL: there are no
 * more.  A fuzz target that knows variants has a function of its own. */
__attribute__((weak)) uint8_t *fuzz_variant(const uint8_t *data, size_t size, size_t number,
                                            size_t *ret_size)
{
        return NULL;
}

static void replay_variants(const uint8_t *data, size_t size)
{
        size_t number = 0, n;

        for (uint8_t *v; (v = fuzz_variant(data, size, number, &n)); number++) {
                LLVMFuzzerTestOneInput(v, n);
                free(v);
        }
        variants += (int)number;
}

static int replay(const char *path, size_t size)
{
        FILE *file = fopen(path, "rb");
        uint8_t *data = malloc(size ? size : 1);
        int r = -1;

        if (file && data && fread(data, 1, size, file) == size) {
                LLVMFuzzerTestOneInput(data, size);
                replay_variants(data, size);
                replayed++;
                r = 0;
        } else {
                fprintf(stderr, "%s: %s\n", path, strerror(errno));
        }
        free(data);
        if (file)
                fclose(file);
        return r;
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *place)
{
        return type == FTW_F ? replay(path, (size_t)st->st_size) : 0;
}

int main(int argc, char **argv)
{
        LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
        for (int i = 1; i < argc; i++) {
                if (nftw(argv[i], visit, 16, FTW_PHYS) != 0) {
                        fprintf(stderr, "%s: cannot be replayed\n", argv[i]);
                        return 1;
                }
        }
        printf("%d inputs and %d variants replayed\n", replayed, variants);
        return replayed > 0 ? 0 : 1;
}
