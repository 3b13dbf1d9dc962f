/* coding.h - codes how an update changes what a slice serves, for readers (shard/deltas.h). */
#pragma once

#include "daemon/job/shard/deltas.h"
#include "daemon/job/shard/shard.h"

/* A delta that the tasks of an update code together. */
struct coding;

/* NULL: there is no memory, or what the group serves is not coded. */
struct coding *coding_begin(struct replica *h, uint32_t group, uint64_t version);
/* After the last task: keeps the delta, if it is whole and smaller than the slice. */
void coding_end(struct coding *c);
void coding_free(struct coding *c);
/* The update changes nothing that the owner serves of the group. */
void coding_nothing(struct replica *h, uint32_t group, uint64_t version);

/* One task's part.  coder_begin() to coder_end() run on the task's thread. */
struct coder {
        struct coding *of; /* NULL: nothing is coded */
        uint8_t *buffer;   /* was, is, then bytes */
        uint64_t first;    /* element in the slice, of was[0] */
        uint32_t n;        /* elements in was and is */
        uint64_t begin;    /* of the task's first block; UINT64_MAX: none */
        uint64_t used, room; /* of bytes */
        uint8_t *bytes;
        uint32_t chunks;
};

void coder_begin(struct coder *coder, struct coding *of);
/* A chunk was updated, and what is served was not.  old_master: as of state_served(). */
void coder_chunk(struct coder *coder, uint32_t chunk, const float *old_master);
/* A chunk stays as it is. */
void coder_pass(struct coder *coder);
/* Nobody knows what the chunk was: the delta is not coded. */
void coder_lost(struct coder *coder);
void coder_end(struct coder *coder);
