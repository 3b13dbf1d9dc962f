/* Shared by writing (snapshot.c) and reading (read.c, load.c) of shards. */
#pragma once

#include "daemon/store/snapshot/snapshot.h"

static const char snapshot_magic[8] = { 'z', 'e', 'r', 'o', 'd', '.', 'c', 'k' };

uint64_t snapshot_blocks(const struct snapshot_header *h);
/* Where the stream begins in the file. */
uint64_t snapshot_stream_at(const struct snapshot_header *h);
/* ZERO_EIO with errno's text. */
int snapshot_failed(struct fault *fault, const char *name, const char *doing);
