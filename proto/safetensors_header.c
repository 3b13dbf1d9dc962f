/* See safetensors_header.h. */
#include "proto/safetensors_header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = SAFETENSORS_LENGTH };

static json_t *describe(const struct safetensor *t)
{
        json_t *shape = json_array();

        for (uint32_t d = 0; d < t->ndim; d++)
                json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        return json_pack("{s:s, s:o, s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                         (json_int_t)t->at, (json_int_t)(t->at + t->bytes));
}

json_t *safetensors_metadata(const char *job, uint64_t version)
{
        char text[32];

        snprintf(text, sizeof(text), "%llu", (unsigned long long)version);
        return json_pack("{s:s, s:s, s:s}", "format", "pt", "job", job, "version", text);
}

int safetensors_header(const struct safetensor *tensors, size_t n, json_t *metadata, char **ret,
                       size_t *ret_size)
{
        json_t *j = json_object();
        char *text, *whole;
        size_t size, padded;
        int bad;

        bad = json_object_set_new(j, SAFETENSORS_METADATA, metadata);
        for (size_t i = 0; i < n; i++)
                bad |= json_object_set_new(j, tensors[i].name, describe(&tensors[i]));
        text = bad ? NULL : json_dumps(j, JSON_COMPACT | JSON_PRESERVE_ORDER);
        json_decref(j);
        if (!text)
                return -1;
        size = strlen(text);
        padded = (size + LENGTH - 1) / LENGTH * LENGTH; /* the tensors begin aligned */
        whole = malloc(LENGTH + padded);
        if (whole) {
                memset(whole, ' ', LENGTH + padded);
                for (int i = 0; i < LENGTH; i++)
                        whole[i] = (char)((uint64_t)padded >> 8 * i & 0xff);
                memcpy(whole + LENGTH, text, size);
                *ret = whole;
                *ret_size = LENGTH + padded;
        }
        free(text);
        return whole ? 0 : -1;
}

const char *safetensors_word(enum zero_dtype dtype)
{
        switch (dtype) {
        case ZERO_BF16:
                return "BF16";
        case ZERO_FP16:
                return "F16";
        case ZERO_INT8:
                return "I8";
        case ZERO_UINT8:
                return "U8";
        case ZERO_FP8_E4M3:
                return "F8_E4M3";
        case ZERO_FP8_E5M2:
                return "F8_E5M2";
        case ZERO_BOOL:
                return "BOOL";
        case ZERO_FP32:
                break;
        }
        return "F32";
}
