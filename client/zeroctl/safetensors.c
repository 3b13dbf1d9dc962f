/* See safetensors.h. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = SAFETENSORS_LENGTH };

__attribute__((format(printf, 2, 3))) static int flaw(char *error, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(error, SAFETENSORS_ERROR, format, arguments);
        va_end(arguments);
        return -1;
}

/* ---- reading ---------------------------------------------------------------------- */

static size_t element_bytes(const char *dtype)
{
        static const struct {
                const char *name;
                size_t bytes;
        } known[] = {
                { "F64", 8 }, { "F32", 4 }, { "F16", 2 },  { "BF16", 2 },    { "I64", 8 },
                { "I32", 4 }, { "I16", 2 }, { "I8", 1 },   { "U64", 8 },     { "U32", 4 },
                { "U16", 2 }, { "U8", 1 },  { "BOOL", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }
        };

        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
                if (strcmp(known[i].name, dtype) == 0)
                        return known[i].bytes;
        return 0;
}

/* A whole number that is not negative. */
static bool take_count(const json_t *j, uint64_t *ret)
{
        if (!json_is_integer(j) || json_integer_value(j) < 0)
                return false;
        *ret = (uint64_t)json_integer_value(j);
        return true;
}

static bool take_shape(const json_t *j, struct safetensor *t, uint64_t *ret_bytes)
{
        const json_t *shape = json_object_get(j, "shape");
        uint64_t bytes = t->element;

        if (!json_is_array(shape) || json_array_size(shape) > SAFETENSORS_DIM_MAX)
                return false;
        t->ndim = (uint32_t)json_array_size(shape);
        for (uint32_t d = 0; d < t->ndim; d++)
                if (!take_count(json_array_get(shape, d), &t->shape[d]) ||
                    __builtin_mul_overflow(bytes, t->shape[d], &bytes))
                        return false;
        *ret_bytes = bytes;
        return true;
}

/* data: bytes after the header, from `base` in the file. */
static int take_tensor(const char *name, const json_t *j, uint64_t base, uint64_t data,
                       struct safetensor *t, char *error)
{
        const json_t *offsets = json_object_get(j, "data_offsets");
        uint64_t begin, end, bytes;

        t->name = name;
        t->dtype = json_string_value(json_object_get(j, "dtype"));
        if (!t->dtype)
                return flaw(error, "tensor '%.100s' has no dtype", name);
        t->element = element_bytes(t->dtype);
        if (t->element == 0)
                return flaw(error, "tensor '%.100s' has dtype '%.20s', which is not known", name,
                            t->dtype);
        if (!take_shape(j, t, &bytes))
                return flaw(error, "tensor '%.100s' has no shape of at most %d dimensions", name,
                            SAFETENSORS_DIM_MAX);
        if (json_array_size(offsets) != 2 || !take_count(json_array_get(offsets, 0), &begin) ||
            !take_count(json_array_get(offsets, 1), &end) || begin > end || end > data)
                return flaw(error, "tensor '%.100s' does not lie in the file", name);
        if (end - begin != bytes)
                return flaw(error,
                            "tensor '%.100s' has %" PRIu64 " bytes, its shape makes %" PRIu64, name,
                            end - begin, bytes);
        t->at = base + begin;
        t->bytes = bytes;
        return 0;
}

static int by_place(const void *a, const void *b)
{
        const struct safetensor *x = a, *y = b;

        if (x->at != y->at)
                return x->at < y->at ? -1 : 1;
        return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int take_tensors(struct safetensors *s, uint64_t base, uint64_t data, char *error)
{
        uint64_t end = base;
        const char *name;
        json_t *j;
        int r = 0;

        s->tensors = calloc(json_object_size(s->header) + 1, sizeof(*s->tensors));
        if (!s->tensors)
                return flaw(error, "out of memory");
        json_object_foreach(s->header, name, j)
        {
                if (strcmp(name, SAFETENSORS_METADATA) == 0)
                        continue;
                r = take_tensor(name, j, base, data, &s->tensors[s->n], error);
                if (r)
                        return r;
                s->n++;
        }
        qsort(s->tensors, s->n, sizeof(*s->tensors), by_place);
        for (size_t i = 0; i < s->n; i++) {
                if (s->tensors[i].at != end)
                        return flaw(error, "tensor '%.100s' overlaps another, or there is a hole",
                                    s->tensors[i].name);
                end += s->tensors[i].bytes;
        }
        return end == base + data ? 0 : flaw(error, "bytes of the file belong to no tensor");
}

static int read_header(struct safetensors *s, uint64_t size, uint64_t *ret_length, char *error)
{
        uint8_t length[LENGTH];
        uint64_t n = 0;
        json_error_t why;
        char *text;

        if (size < LENGTH || pread(s->fd, length, LENGTH, 0) != LENGTH)
                return flaw(error, "it is too short");
        for (int i = 0; i < LENGTH; i++)
                n |= (uint64_t)length[i] << 8 * i;
        if (n > SAFETENSORS_HEADER_MAX || n > size - LENGTH)
                return flaw(error,
                            "its header has %" PRIu64 " bytes: it is not a safetensors file, "
                            "or it was cut",
                            n);
        text = malloc(n + 1);
        if (!text)
                return flaw(error, "out of memory");
        if (pread(s->fd, text, n, LENGTH) == (ssize_t)n)
                s->header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
        free(text);
        if (!json_is_object(s->header))
                return flaw(error, "its header is not a JSON object");
        *ret_length = n;
        return 0;
}

int safetensors_open(const char *path, struct safetensors *ret,
                     char error[static SAFETENSORS_ERROR])
{
        /* without O_NONBLOCK the open of a FIFO waits for a writer */
        struct safetensors s = { .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) };
        uint64_t length = 0;
        struct stat st;
        int r;

        if (s.fd < 0 || fstat(s.fd, &st) < 0) {
                r = flaw(error, "%s", strerror(errno));
        } else if (!S_ISREG(st.st_mode)) {
                r = flaw(error, "it is not a regular file");
        } else {
                uint64_t size = (uint64_t)st.st_size;

                r = read_header(&s, size, &length, error);
                if (r == 0)
                        r = take_tensors(&s, LENGTH + length, size - LENGTH - length, error);
        }
        if (r) {
                safetensors_close(&s);
                return r;
        }
        *ret = s;
        return 0;
}

void safetensors_close(struct safetensors *s)
{
        if (s->fd >= 0)
                close(s->fd);
        json_decref(s->header);
        free(s->tensors);
        *s = (struct safetensors){ .fd = -1 };
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
        for (size_t i = 0; i < s->n; i++)
                if (strcmp(s->tensors[i].name, name) == 0)
                        return &s->tensors[i];
        return NULL;
}
