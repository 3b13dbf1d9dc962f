/*
 * Reading of safetensors files.
 *
 * A file may hold anything: every length, shape and place is checked before use, and a file with
 * any error is refused as a whole.
 */
#pragma once

#include "proto/safetensors_header.h"

enum { SAFETENSORS_HEADER_MAX = 100000000, SAFETENSORS_ERROR = 512 };

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
/* NULL: no tensor has the name. */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);
