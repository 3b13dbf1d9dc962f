/*
 * The begin of a safetensors file: eight bytes with the length of a JSON object, little-endian; the
 * object, which has the type, shape and place of each tensor by name.  The tensors' bytes follow,
 * one after the other, without holes.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "proto/zero_types.h"

#define SAFETENSORS_METADATA "__metadata__" /* in the object, so no tensor may have this name */

enum { SAFETENSORS_LENGTH = 8, SAFETENSORS_DIM_MAX = 8 };

struct safetensor {
        const char *name;
        const char *dtype; /* "F32", ... */
        size_t element;    /* bytes; 0: dtype is not known here */
        uint32_t ndim;
        uint64_t shape[SAFETENSORS_DIM_MAX];
        uint64_t at, bytes; /* in the file */
};

/* The format's word for a type of the service. */
const char *safetensors_word(enum zero_dtype dtype);
/* What a file tells of itself: an object of strings. */
json_t *safetensors_metadata(const char *job, uint64_t version);
/* Makes the bytes that precede the tensors' own; each tensor's `at` counts from the first tensor's
 * byte.  The caller frees *ret.  metadata: the function takes it over.  -1: out of memory. */
int safetensors_header(const struct safetensor *tensors, size_t n, json_t *metadata, char **ret,
                       size_t *ret_size);
