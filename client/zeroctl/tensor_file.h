/* What export and publish share: a layout's tensors as files of safetensors. */
#pragma once

#include "ctl.h"
#include "safetensors.h"

enum { PIECE_BYTES = 4 << 20 };

/*
 * Lists a layout's tensors in its order, each with its place in its file: a file holds a run of
 * tensors of at most `most` bytes, or one tensor.  A tensor that does not lie behind the one before
 * (tensor_begins()) begins the next file.  master: in fp32, but types of bytes as they are.  The
 * caller frees *ret.  CTL_OK, or an error that is told.
 */
int tensor_list(const struct zero_layout *layout, bool master, uint64_t most,
                struct safetensor **ret, uint32_t *ret_n);
bool tensor_begins(const struct safetensor *tensors, uint32_t i);

/* A tensor's bytes in a version that is held; if it has none, anything. */
const char *tensor_bytes(const struct zero_client *client, const struct zero_weights *weights,
                         uint32_t tensor);

/* All of these bytes; 0 or -errno. */
int file_put(int fd, const void *data, size_t n);
/* What precedes the tensors of one file; 0 or -errno. */
int file_put_header(int fd, const struct safetensor *tensors, uint32_t n, json_t *metadata);

/* Says what was written, and where. */
int file_show(struct ctl *ctl, const char *job, const char *file, uint64_t version, uint32_t n,
              uint64_t bytes);
