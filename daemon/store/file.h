/*
 * A state file: its header, and where each part lies.  Private to the store.
 *
 *   header            struct file_header; never changes after creation, but for its format, which
 *                     is raised once (state_keep_times()).  The last word of its page says where
 *                     the planes are
 *   layout            zero.Layout, packed; never changes
 *   record copies     two struct record_copy (record.c)
 *   tensor steps      two words [tensor]; the record says which count
 *   present           two words [tensor]; the record says which count
 *   tensor sets       words [tensor]
 *   puts              two words: how many have begun and not ended; state->puts
 *   chunk versions    words [chunk]
 *   undo slots        struct undo_slot [n_undo] with their values (undo_slot.c)
 *   serve plane       bytes [plan->serve_bytes], if plan->keeps_served
 *   master            bytes [plan->master_bytes]
 *   moments           bytes [plan->moment_bytes[i]], one plane behind the other
 *   grad              plan->grad_dtype [plan->moment_elements]
 *   old values        bytes [plan->old_bytes]
 *
 * While a state is on a GPU the file has a hole in place of the planes, serve included.  Only the
 * first chunk of a shard has a version, unless the shard came to the GPU in the middle of an update
 * (state_chunks()).  Closing the state writes the others.
 *
 * Every part begins at a multiple of FILE_ALIGN bytes, but for moments, grad and old values of
 * format 10.  There each plane begins FILE_STAGGER bytes further into its page than the one before.
 * An update goes through all planes at once, and CPUs of AMD's family 25 take a third longer if
 * that is the same place in all pages.
 *
 * Numbers are in the machine's byte order, because a file never leaves its machine.  Only the
 * file's name has the epoch (store.c).
 *
 * Opening a file finds every flipped bit outside the planes and the slots' values.  Header, layout
 * and record copies have hashes, and a word is a number with its check value (seal.h).  Planes and
 * slots' values have none: hashing them would cost more than the update itself, and memory that
 * corrects errors (ECC) does that job.
 */
#pragma once

#include "daemon/store/store.h"
#include "proto/cleanup.h"

enum {
        FILE_ALIGN = 4096,
        /* Raise it with any change to this page, to struct state_record, or to the results of
         * partition_new() or plan_new(). */
        FILE_FORMAT = 10,
        /* Keeps when the last step was decided: a release that does not know the field would leave
         * an old time there. */
        FILE_FORMAT_TIMES = 9,
        /* The format of the release before.  This release reads it, and gives it to new files while
         * a node may have that release. */
        FILE_FORMAT_BEFORE = 8,
        FILE_STAGGER = 512,
        /* Raise it when an update yields other bits than before, or an undo slot is read in
         * another way.  An attempt prepared under one number does not go on under another. */
        FILE_ARITHMETIC = 2,
        FILE_HASH = 32,
        FILE_ID = 16,
        FILE_UNDO_MAX = 4096,
        FILE_COPIES = 2,
        FILE_PLANES = FILE_ALIGN - 8, /* byte offset of a word: where the planes are */
};

/* The word of the planes (FILE_PLANES): PLANES_HERE, or the number of the store in whose process
 * they lie on a GPU. */
enum { PLANES_HERE = 0 };

struct file_header {
        char magic[8];
        uint32_t format, header_bytes, record_bytes;
        uint32_t chunk_elements, n_undo, n_tensors;
        uint32_t uid, world_size, n_owners, owner, reduce_dtype, copy;
        uint64_t layout_bytes, file_bytes;
        uint8_t id[FILE_ID]; /* random: no other state's blobs are taken for this one's */
        uint8_t layout_hash[FILE_HASH]; /* of the packed layout */
        uint8_t plan_hash[FILE_HASH];   /* of the ranges of groups that lie here */
        char job[ZERO_NAME_MAX + 1];
        uint8_t hash[FILE_HASH]; /* of all fields before it */
};

_Static_assert(sizeof(struct file_header) <= FILE_PLANES, "the layout lies behind one page");

/* The word that says if a record copy counts.  It tells a torn copy from a damaged one. */
enum copy_use {
        COPY_VOID = 0,   /* the other copy is newer, or the process died while it wrote this one */
        COPY_COUNTS = 1, /* unless the other copy counts too and has a higher sequence number */
};

struct record_copy {
        uint64_t use;            /* word: enum copy_use */
        uint8_t hash[FILE_HASH]; /* of all behind it, up to the last set in use */
        uint64_t sequence;
        uint32_t arithmetic;
        uint32_t side;         /* 0 or 1: which tensor steps count */
        uint32_t present_side; /* 0 or 1: which presence marks count */
        uint32_t decided_s;    /* format 9: Unix time of the last decision; 0: not known */
        struct state_record record;
};

struct undo_slot {
        uint64_t chunk;     /* word, atomic: 0 free, else 1 + the chunk that is being changed */
        uint64_t version;   /* word: the version that the chunk goes to, ahead or back */
        uint64_t kept;      /* undo_mark() of the number of elements whose old values are here */
        uint64_t unused[5]; /* so that values begin at a cache line */
        float values[]; /* a chunk's old values: master, then moments; room for chunk_elements in
                           fp32 of each plane */
};

/* Byte offsets of the parts. */
struct file_map {
        uint64_t layout, copies[2], steps[2], presents[2], sets, puts, versions, undo;
        uint64_t serve, master, moments[OPTIMIZER_MOMENTS], grad, old, bytes;
};

/* Of a new file. */
uint32_t file_format(const struct plan *plan, const struct job_spec *job);

struct file_map file_map(const struct plan *plan, uint32_t n_tensors, uint32_t n_undo,
                         uint64_t layout_bytes);
/* Bytes from one undo slot to the next. */
size_t file_undo_stride(const struct plan *plan);
/* Points all but the state's planes into its mapping. */
void file_bind(struct state *state, const struct file_map *map);

/* Writes the header, the layout and the word for the planes into a mapping. */
void file_write(void *map, const struct file_map *places, const struct file_header *header,
                const void *packed_layout, uint64_t where);
void file_set_planes(void *map, uint64_t where);
/* -EIO if the word cannot be read or is damaged. */
int file_planes(int fd, uint64_t *ret);
/* Reads and checks the header of a file of `bytes` bytes; the fault names `name`. */
int file_read_header(int fd, uint64_t bytes, const char *name, struct file_header *ret,
                     struct fault *fault);
void file_hash(uint8_t ret[static FILE_HASH], const void *data, size_t size);
void file_plan_hash(const struct plan *plan, uint8_t ret[static FILE_HASH]);
/* Sets and returns ZERO_EIO: the file is damaged, why, and what to do. */
int file_damaged(struct fault *fault, const char *name, const char *why);
/* Opens a file of the directory; refuses one that another user could have made or can change. */
int file_open(int dir, const char *name, int *ret_fd, uint64_t *ret_bytes, struct fault *fault);
/* Reserves the first `bytes` of a file that somebody may have copied with holes: a later write to
 * its mapping cannot fail. */
int file_reserve(int fd, uint64_t bytes, const char *name, struct fault *fault);

/* The private half of struct state. */
struct state_inside {
        struct store *store;
        char *file; /* name in the directory; NULL: deleted, or another state's name now */
        int fd;
        void *map;
        size_t map_bytes, file_bytes; /* on a GPU the mapping ends where the hole begins */
        const struct home *home;      /* where the planes are (planes.h) */
        struct planes *planes;        /* on a GPU; NULL: in the file, or lost */
        bool lost;
        bool *mixed; /* [group]: the shard is on a GPU and its chunks differ in version */
        uint32_t n_undo;
        float *master;                       /* in the file's mapping, or on a GPU */
        void *grad;                          /* likewise, of plan->grad_dtype */
        uint8_t *moments[OPTIMIZER_MOMENTS]; /* likewise; a plane that no group has is empty */
        uint8_t *old;                        /* likewise */
        uint8_t *serve; /* in serve_segment or the file's mapping; NULL if the plan has none */
        struct undo_slot *undo;
        struct record_copy *copies[2];
        /* the tables in the file, as words (tables.c) */
        uint64_t *steps[2], *presents[2], *sets, *puts_words, *versions;
        uint32_t putting;         /* puts that have begun and not ended */
        uint64_t *numbers;        /* tensor_step and tensor_set, writable */
        struct state_blobs {      /* blobs.c */
                int fd;           /* -1: there is no file */
                uint32_t n_ranks; /* mapped */
                uint64_t bytes;   /* of the file */
                void *map;
        } blobs;
        struct segment file_served; /* state_serve(); its memory is in `map` */
        _Atomic uint32_t mapped;    /* calls of state_map() without their state_unmap() */
};

/* ---- state.c: shared by making a state and opening one ---- */

/* Makes a state without a file. */
int state_new(struct store *store, const char *file, struct state **ret);
/* Frees a state, which may be half-built. */
void state_free(struct state *state);
int state_map_file(struct state *state, uint64_t bytes, struct fault *fault);
/* Makes the serve plane, zeroed, if the plan has one and the planes are not lost. */
int state_make_serve(struct state *state, const struct plan *plan, const char *job,
                     struct fault *fault);
/* Takes identity and tables from the file, which must be mapped. */
int state_bind_file(struct state *state, const struct file_map *places);

/* ---- record.c ---- */

/* The copy that counts.  Only the thread that may change the record calls this. */
static inline const struct record_copy *record_current(const struct state *state)
{
        return CONTAINER_OF(state->record, const struct record_copy, record);
}

/* Computes a copy's hash.  n_sets must be in bounds. */
void record_hash(const struct record_copy *c, uint8_t ret[static FILE_HASH]);
/* The first record of a new file: version 0, attempt 0, open. */
void record_init(struct state *state);
/* Finds the copy that counts.  ZERO_EIO if a copy is damaged, or none counts, or it is invalid. */
int record_load(struct state *state, struct fault *fault);

/* An element of a group's master, a record's first one unless master is in fp32. */
static inline uint8_t *master_at(const struct state *s, uint32_t group, uint64_t element)
{
        const struct plan_shard *shard = &s->plan->shards[group];

        return (uint8_t *)s->in->master + shard->master_at +
               plan_master_bytes(shard, element - shard->master);
}

/* What the serve plane has of an element of the group, if its master needs that; else NULL. */
static inline uint16_t *served_at(const struct state *s, uint32_t group, uint64_t in_group)
{
        const struct plan_shard *shard = &s->plan->shards[group];

        if (shard->format == FORMAT_FP32)
                return NULL;
        return (uint16_t *)(s->in->serve + shard->serve) + (in_group - shard->range.first);
}

/* Points ret to the chunk's values in the planes of its tensors, and returns the number of planes.
 */
static inline uint32_t chunk_planes(const struct state *s, const struct plan_chunk *c,
                                    uint8_t *ret[static UPDATE_PLANES])
{
        uint32_t n = 1 + c->run->n_moments;

        ret[0] = master_at(s, c->group, c->master);
        for (uint32_t k = 1; k < n; k++)
                ret[k] = s->in->moments[k - 1] + plan_moment_at(c->run, k - 1, c->moment);
        return n;
}

/* ---- undo_kept.c ---- */

/* The place for the chunk's old values of plane k. */
uint8_t *kept_at(const struct state *s, const struct plan_chunk *c, uint32_t k);
/* Puts the kept values of a unit that is ahead of `version` back, and the unit at `version`. */
void kept_back(struct state *state, uint32_t unit, uint64_t version);
/* Puts all units back that are ahead: the record has not decided to update. */
void kept_back_all(struct state *state);

/* ---- undo_slot.c ---- */

/* Puts old values back after a crash: of chunks whose update was interrupted, and of chunks that
 * are ahead of the recorded decision.  Returns how many slots were held. */
uint32_t undo_all(struct state *state);
/* Frees the slots of a new file. */
void undo_init(struct state *state);
/* ZERO_EIO if an interrupted process cannot have left these versions and slots. */
int undo_check(const struct state *state, struct fault *fault);

/* ---- tables.c ---- */

/* Allocates the working copies for state->n_tensors; 0 or -ENOMEM. */
int tables_new(struct state *state);
void tables_free(struct state *state);
/* Writes the words of a new file: steps and versions 0, sets from the layout. */
void tables_init(struct state *state, const layout *l);
/* Checks the tensors' words and reads them into the working copies.  After record_load(). */
int tables_load(struct state *state, struct fault *fault);
void tables_set_chunk_version(struct state *state, uint32_t chunk, uint64_t version);
/* Sets the version of all chunks that have one. */
void tables_set_versions(struct state *state, uint64_t version);
/* After planes have come to a GPU: a shard is one unit.  Finds shards whose chunks differ in
 * version. */
void tables_join_units(struct state *state);
/* After planes were on a GPU: gives every chunk of the file its version. */
void tables_spread_versions(struct state *state);
/* Write the side that does not count, and return its number. */
uint32_t tables_raise_steps(struct state *state);
uint32_t tables_write_present(struct state *state);
/* Reads the steps that count, after the record has named another side. */
void tables_take_steps(struct state *state);

/* ---- puts.c ---- */

/* Writes the words of a new file: no put yet. */
void puts_init(struct state *state);
int puts_load(struct state *state, struct fault *fault);
/* Makes the fingerprint random after a crash in a put.  Changes the file, so call it after every
 * check. */
void puts_settle(struct state *state);

/* ---- blobs.c ---- */

/* Opens the file of blobs if there is one.  The state's file must be mapped. */
int blobs_open(struct state *state, struct fault *fault);
/* Forgets blobs that were staged for an attempt that is void now, because its number may be used
 * again.  Changes the file, so call it after every check. */
void blobs_settle(struct state *state);
void blobs_close(struct state *state);
void blobs_unlink(struct state *state);
