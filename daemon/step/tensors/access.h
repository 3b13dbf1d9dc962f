/*
 * access.h - what the client's call (access.c), an owner's part in it (work.c), norms (norms.c,
 * norms_told.c) and checksums (checksum.c) share.
 */
#pragma once

#include "daemon/step/tensors/tensors.h"

/* Per client, the most calls in progress.  libzero waits for PUT_SLOTS puts, and may have given up
 * some more.  A put moves at most one slot of the transfer area, so no quota counts the copies. */
enum { PUT_SLOTS = 4, PUTS_MAX = 8, GETS_MAX = 4 };
/* Per user, the most calls of all clients in progress. */
enum { TURNS = 16 };

/* A node's reads and writes for clients. */
struct tensors {
        struct list accesses, norms;
        struct list works;          /* works that wait for the end of an update, or for gradients */
        struct list summings;       /* checksums that wait or run */
        struct list begun, waiting; /* turns */
        bool advancing;
        uint64_t last_put;
        struct put_values *spare; /* memory for later puts; NULL: none */
        bool put_lately;          /* a put has come since the last progress() */
};

/*
 * A copy of a put's values, for other nodes or a mirror.  It is made when the call comes: the
 * client may write to its memory meanwhile, and owner and mirror must get the same values.
 */
struct put_values {
        uint32_t references;
        struct tensors *tensors;
        struct push_window *window;
        struct put_values *next; /* tensors.spare */
        char data[];             /* a slot's bytes, aligned as malloc() aligns */
};
void put_values_unref(struct put_values *v);

/* turns.c.  The call begins at once, or when another call of the user ends. */
void turn_take(struct tensors *t, struct turn *turn);
void turn_end(struct tensors *t, struct turn *turn);
bool turn_waits(const struct turn *turn);
/* Says whom a call waits for that has not begun. */
void turn_describe(struct wait_line *ret);

/* A client's call.  It has a part for each owner with elements of the range. */
struct access {
        struct list link; /* tensors.accesses */
        struct turn turn;
        struct job *job;
        struct push_window *window;
        struct put_values *values; /* NULL: a get, or a put from the client's memory */
        struct request *request;   /* NULL once the request has ended */
        bool put;
        uint64_t id; /* the put's number, for other nodes */
        uint32_t tensor;
        struct plane plane;
        uint32_t dtype; /* of the values; 0: the plane's */
        uint64_t first, count;
        uint64_t at; /* in the transfer area */
        uint64_t timeout_ms;
        uint32_t pending;
        int status;
        char text[200];
};

/* An owner's part in a get or put of a client on any node.  It runs while no update does. */
struct work {
        struct list link; /* tensors.works while it waits */
        struct offload_task task;
        struct ask ask;
        struct job *job;
        struct replica *replica;           /* NULL: the owner is on another node */
        bool (*must_wait)(struct work *w); /* NULL: it waits while an update runs (work.c) */
        void (*begin)(struct work *w);
        /* status: 0, -errno if the values did not come, or ZERO_ERANGE if a value is too large */
        void (*end)(struct work *w, int status);
        struct access *access; /* the call of this node's client; NULL: another node's client */
        bool put;
        uint32_t node;
        uint64_t transfer, call;
        uint64_t version;  /* the job's version, as the client's node knows it */
        uint64_t put_name; /* the same for owner and mirror (state_put_end()) */
        uint32_t tensor, group;
        struct plane plane;
        uint32_t dtype;        /* of the values in the buffer; 0: the plane's */
        uint64_t first, count; /* in the tensor */
        void *buffer;          /* the client's memory, or a buffer */
        bool owns_buffer, pinned;
        struct shard_part sent;         /* what is being sent to another node */
        struct norms_told *norms;       /* NULL: the work takes no norms (norms_told.c) */
        uint32_t owner, segment;        /* segment: of the group, where the next piece begins */
        uint64_t attempt, elements, at; /* at: in the segment */
};

/* True if the plane has one value per tensor, kept by every owner with a part of the tensor. */
bool plane_is_single(struct plane plane);
/* True if the tensor has the plane.  A frozen tensor has no moments, step or set, and the optimizer
 * decides how many moments there are. */
bool tensor_has(const struct job *job, uint32_t tensor, struct plane plane);
/* Says what ZERO_ERANGE means for a put to that plane. */
const char *work_range_text(struct plane plane);
/* Bytes per element of the plane. */
size_t plane_size(const struct job *job, uint32_t tensor, struct plane plane);
/* Bytes per value of type dtype on its way to the plane; dtype 0: the plane's type. */
size_t values_size(const struct job *job, uint32_t tensor, struct plane plane, uint32_t dtype);
/* True if values of the type can be put into the plane; dtype 0: the plane's type. */
bool plane_takes(const struct job *job, uint32_t tensor, struct plane plane, uint32_t dtype);

/* A work is made, begun once no update runs, copied on an offload thread, and freed. */
struct work *work_new(struct job *job, struct replica *h, uint32_t tensor, struct plane plane,
                      uint64_t first, uint64_t count);
/* Gives the put one name for owner and mirror, from the client's node and the put's number there.
 */
void work_name_put(struct work *w, uint32_t node, uint64_t put);
void work_start(struct work *w);
void work_submit(struct work *w);
/* The lane for the next piece of a work that pins groups.  It is the step's lane once an update
 * waits for the pins. */
enum offload_lane work_lane(const struct work *w);
/* Checks that the client may have another get in progress: 0 or ZERO_EBUSY. */
int gets_check(const struct push_window *window, struct fault *fault);
extern const char being_moved[]; /* the text of ZERO_EBUSY on a node without all its shards */

/* norms.c */
struct norm_sum {
        struct exact_sum squares;
        bool finite;
        bool present; /* GRAD: the tensor has a gradient */
};
void norm_sums_init(struct norm_sum *sums, uint32_t n);
/* True if the norm counts the tensor's values: bytes have no norm. */
bool norm_counts(const struct job *job, uint32_t tensor, struct plane plane);
int norms_check(const struct job *job, const Zero__Norms *m, struct fault *fault);
/* Ends the norms of a job that was dropped. */
void norms_fail(struct job *job, int status, const char *text);

/* Begins the works of the job that waited for the end of an update or a copy. */
void works_go_on(struct job *job);
void work_free(struct work *w);
