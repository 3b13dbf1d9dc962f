/*
 * access.h - shared by what reads and writes planes: the client's call (access.c), an
 * owner's part of it (work.c), checksums (checksum.c).
 */
#pragma once

#include "daemon/tensors/tensors.h"

/*
 * What a client puts, as it was when the call came: the client may write to its memory meanwhile,
 * and all copies get the same.
 */
struct put_values {
        uint32_t references;
        struct push_window *window;
        char data[]; /* aligned as malloc() has it */
};
void put_values_unref(struct put_values *v);

/* A client's call, in as many parts as there are owners to ask. */
struct access {
        struct list link; /* engine.accesses */
        struct job *job;
        struct push_window *window;
        struct put_values *values; /* NULL: it is no put */
        struct request *request;   /* NULL once it has ended */
        bool put;
        uint64_t id; /* other nodes name a put by it */
        uint32_t tensor;
        enum zero_plane plane;
        uint64_t first, count;
        uint64_t timeout_ms;
        uint32_t pending;
        int status;
        char text[200];
};

/* What an owner does for a get or put, its own or another node's, once no update runs. */
struct work {
        struct list link; /* engine.works while it waits */
        struct offload_task task;
        struct ask ask;
        struct job *job;
        struct replica *replica; /* NULL where another node does it */
        void (*begin)(struct work *w);
        /* 0, -errno where the values did not come, or ZERO_ERANGE where they make no sense */
        void (*end)(struct work *w, int status);
        struct access *access; /* of this node's client; NULL for another node's */
        bool put;
        uint32_t node;
        uint64_t transfer, call;
        uint64_t version;  /* of the job that the other node has heard of */
        uint64_t put_name; /* the same at every copy (state_put_end()) */
        uint32_t tensor, group;
        enum zero_plane plane;
        uint64_t first, count; /* in the tensor */
        void *buffer;          /* the client's memory, or an accumulator buffer */
        bool owns_buffer, pinned;
        void (*checksum_done)(void *arg, const struct checksum *sum);
        void *checksum_arg;
        struct checksum checksum;
};

/* Whether a plane has one value for a whole tensor, which every owner with a part of it keeps. */
bool plane_is_single(enum zero_plane plane);
/* A frozen tensor has no moments, step and set, and an optimizer has so many moments. */
bool tensor_has(const struct job *job, const struct layout_tensor *t, uint32_t plane);
/* What ZERO_ERANGE of a put to that plane means. */
const char *work_range_text(enum zero_plane plane);
/* Bytes an element of a plane. */
size_t plane_size(const struct job *job, uint32_t tensor, enum zero_plane plane);

/* An owner's part: made, started once no update runs, copied on an offload thread, freed. */
struct work *work_new(struct job *job, struct replica *h, uint32_t tensor, enum zero_plane plane,
                      uint64_t first, uint64_t count);
/* Client's put number `put` of a node: what the copies call it. */
void work_name_put(struct work *w, uint32_t node, uint64_t put);
void work_start(struct work *w);
void work_submit(struct work *w);
/* No update runs, or no copy: works of the job that wait for that begin. */
void works_go_on(struct job *job);
void work_free(struct work *w);
