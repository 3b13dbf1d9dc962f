/*
 * The safetensors format: eight bytes with the length of a JSON object, little-endian; the
 * object, which has the type, shape and place of each tensor by name; then the tensors' bytes, one
 * after the other, without holes.
 *
 * A file may hold anything: every length, shape and place is checked before use, and a file with
 * any error is refused as a whole.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "zero_types.h"

enum { SAFETENSORS_HEADER_MAX = 100000000, SAFETENSORS_DIM_MAX = 8, SAFETENSORS_ERROR = 512 };

struct safetensor {
        const char *name;  /* in the header's JSON */
        const char *dtype; /* "F32", ... */
        size_t element;    /* bytes; 0: dtype is not known here */
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

/* 0, or -1 and an error sentence. */
int safetensors_open(const char *path, struct safetensors *ret,
                     char error[static SAFETENSORS_ERROR]);
void safetensors_close(struct safetensors *s);
/* The format's word for a type of the service. */
const char *safetensors_word(enum zero_dtype dtype);
/* NULL: no tensor has the name. */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);

/* Makes the bytes that precede the tensors' own; each tensor's `at` counts from the first tensor's
 * byte.  The caller frees *ret.  metadata: an object of strings; the function takes it over. */
int safetensors_header(const struct safetensor *tensors, size_t n, json_t *metadata, char **ret,
                       size_t *ret_size);
