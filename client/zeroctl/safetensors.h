/*
 * The safetensors format: eight bytes with the length of a JSON object, little-endian; the
 * object, which names each tensor with its type, shape and place; then their bytes, one behind the
 * other, without holes.
 *
 * A file that is read may hold anything: every length, shape and place is checked before it is
 * used, and what is not in order is refused as a whole.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

enum { SAFETENSORS_HEADER_MAX = 100000000, SAFETENSORS_DIM_MAX = 8, SAFETENSORS_ERROR = 512 };

struct safetensor {
        const char *name;  /* in the header's JSON */
        const char *dtype; /* "F32", ... */
        size_t element;    /* bytes; 0: of a type that is not known here */
        uint32_t ndim;
        uint64_t shape[SAFETENSORS_DIM_MAX];
        uint64_t at, bytes; /* in the file */
};

struct safetensors {
        int fd;
        json_t *header;
        struct safetensor *tensors; /* in the order of their bytes */
        size_t n;
};

/* 0, or -1 and a sentence. */
int safetensors_open(const char *path, struct safetensors *ret,
                     char error[static SAFETENSORS_ERROR]);
void safetensors_close(struct safetensors *s);
/* NULL: there is none. */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);

/* The bytes before the tensors' own, for tensors whose `at` is counted from the first of them; the
 * caller frees them.  metadata: an object of strings, taken over. */
int safetensors_header(const struct safetensor *tensors, size_t n, json_t *metadata, char **ret,
                       size_t *ret_size);
