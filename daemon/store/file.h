/*
 * A state file: its header and the place of each part.  Private to the store.
 *
 *   header            struct file_header; never changes after creation
 *                     ... and, last in its page, a word: where the planes are
 *   layout            zero.Layout, packed; never changes
 *   record copies     two struct record_copy, the newer one that counts (record.c)
 *   tensor steps      two words [tensor], the record says which ones count
 *   present           two words [tensor], the same
 *   tensor sets       words [tensor]
 *   puts              words: how many are under way, state->puts
 *   chunk versions    words [chunk]
 *   undo slots        struct undo_slot [n_undo] with their values (undo.c)
 *   master            float [plan->master_elements]
 *   moments           float [plan->moments[i]], one plane behind the other
 *   grad              float [plan->moment_elements]
 *
 * While a state is on a GPU its planes are not here: there is a hole.
 *
 * Every part begins at a multiple of FILE_ALIGN bytes.  Numbers are the machine's own: a
 * file never leaves it.  The epoch is in the file's name alone (store.h).
 *
 * A flipped bit is found when the file is opened, wherever it counts: header, layout and
 * record copies have hashes, a word is a number with its check value (seal.h).  What the
 * planes and the slots hold has none: hashing them would cost more than the update
 * itself, and memory that corrects errors (ECC) is there for that.
 */
#pragma once

#include "daemon/store/store.h"
#include "proto/cleanup.h"

enum {
        FILE_ALIGN = 4096,
        /* To be raised with any change of what this page says, of struct state_record
         * or of partition or plan. */
        FILE_FORMAT = 6,
        /* To be raised when an update gives other bits than before, or an undo slot is read in
         * another way.  An attempt that was prepared with one is not continued with another. */
        FILE_ARITHMETIC = 2,
        FILE_HASH = 32,
        FILE_ID = 16,
        FILE_UNDO_MAX = 4096,
        FILE_COPIES = 2,
        FILE_PLANES = FILE_ALIGN - 8, /* byte offset of a word: enum planes_where */
};

enum planes_where {
        PLANES_HERE = 0,
        PLANES_AWAY = 1, /* in a GPU's memory, as long as the process lives that put them there */
};

struct file_header {
        char magic[8];
        uint32_t format, header_bytes, record_bytes;
        uint32_t chunk_elements, n_undo, n_tensors;
        uint32_t uid, world_size, n_owners, owner, reduce_dtype, copy;
        uint64_t layout_bytes, file_bytes;
        uint8_t id[FILE_ID]; /* random: no other state's blobs are taken for this one's */
        uint8_t layout_hash[FILE_HASH]; /* of the packed layout */
        uint8_t plan_hash[FILE_HASH];   /* of which range of each group lies here */
        char job[ZERO_NAME_MAX + 1];
        uint8_t hash[FILE_HASH]; /* of all before */
};

_Static_assert(sizeof(struct file_header) <= FILE_PLANES, "the layout lies behind one page");

/* Whether a record copy counts: a word, so that a torn copy is not taken for a damaged one. */
enum copy_use {
        COPY_VOID = 0,   /* the other one is newer, or the process died while it wrote this one */
        COPY_COUNTS = 1, /* if the other one does not, or has a lower sequence number */
};

struct record_copy {
        uint64_t use;            /* word: enum copy_use */
        uint8_t hash[FILE_HASH]; /* of all behind it, up to the last set in use */
        uint64_t sequence;
        uint32_t arithmetic;
        uint32_t side;         /* which tensor steps count */
        uint32_t present_side; /* which presence marks do */
        uint32_t unused;
        struct state_record record;
};

struct undo_slot {
        uint64_t chunk;     /* word, atomic: 0 free, else 1 + the chunk that is being changed */
        uint64_t version;   /* word: that it will be at */
        uint64_t kept;      /* undo_mark() of how many of its elements have their old values here */
        uint64_t unused[5]; /* values begin at a cache line */
        float values[];     /* old values, chunk_elements of each plane: master, then moments */
};

/* Byte offsets of the parts. */
struct file_map {
        uint64_t layout, copies[2], steps[2], presents[2], sets, puts, versions, undo;
        uint64_t master, moments[OPTIMIZER_MOMENTS], grad, bytes;
};

struct file_map file_map(const struct plan *plan, uint32_t n_tensors, uint32_t n_undo,
                         uint64_t layout_bytes);
/* Bytes from one undo slot to the next. */
size_t file_undo_stride(const struct plan *plan);
/* Points the state's arrays into its mapping. */
void file_bind(struct state *state, const struct file_map *map);

/* Writes header, layout and where the planes are into a mapping. */
void file_write(void *map, const struct file_map *places, const struct file_header *header,
                const void *packed_layout, enum planes_where where);
void file_set_planes(void *map, enum planes_where where);
/* -EIO: it cannot be read. */
int file_planes(int fd, enum planes_where *ret);
/* The header of an open file of `bytes` bytes, checked; `name` is for the fault. */
int file_read_header(int fd, uint64_t bytes, const char *name, struct file_header *ret,
                     struct fault *fault);
void file_hash(uint8_t ret[static FILE_HASH], const void *data, size_t size);
void file_plan_hash(const struct plan *plan, uint8_t ret[static FILE_HASH]);
/* ZERO_EIO: the file is damaged, and what to do. */
int file_damaged(struct fault *fault, const char *name, const char *why);
/* Opens what lies in the directory; refuses what somebody else can have made or can change. */
int file_open(int dir, const char *name, int *ret_fd, uint64_t *ret_bytes, struct fault *fault);
/* The first bytes of a file that may have holes (a copy) get their space now, or not at all. */
int file_reserve(int fd, uint64_t bytes, const char *name, struct fault *fault);

/* Of a state. */
struct state_inside {
        struct store *store;
        char *file; /* name in the directory; NULL: another state has it now */
        int fd;
        void *map;
        size_t map_bytes, file_bytes; /* on a GPU the mapping ends where the hole begins */
        struct planes *planes;        /* on a GPU (planes.h); NULL: in the file */
        bool lost;
        uint32_t n_undo;
        float *master, *grad;              /* in the file's mapping, or on a GPU */
        float *moments[OPTIMIZER_MOMENTS]; /* the same; a plane that no group has is empty */
        uint8_t *serve; /* serve_segment; NULL if there is nothing to serve from */
        struct undo_slot *undo;
        struct record_copy *copies[2];
        /* the tables in the file, each number with its check value (tables.c) */
        uint64_t *steps[2], *presents[2], *sets, *puts_words, *versions;
        uint32_t putting;         /* puts under way */
        uint64_t *numbers;        /* tensor_step and tensor_set, to write */
        struct state_blobs {      /* blobs.c */
                int fd;           /* -1: there is no file */
                uint32_t n_ranks; /* mapped */
                uint64_t bytes;   /* of the file */
                void *map;
        } blobs;
        _Atomic uint32_t mapped; /* state_map() without state_unmap() */
};

/* ---- state.c: what both ways to a state have in common ---- */

/* Empty. */
int state_new(struct store *store, const char *file, struct state **ret);
/* Of a state in any stage of its making. */
void state_free(struct state *state);
int state_map_file(struct state *state, uint64_t bytes, struct fault *fault);
/* The file has no planes: they are on a GPU, or lost. */
bool state_is_away(const struct state *state);
/* Where the planes are; zeroed. */
int state_make_serve(struct state *state, const struct plan *plan, const char *job,
                     struct fault *fault);
/* Once the file is mapped. */
int state_bind_file(struct state *state, const struct file_map *places);

/* ---- record.c ---- */

/* The copy that counts.  For a thread that may change the record. */
static inline const struct record_copy *record_current(const struct state *state)
{
        return CONTAINER_OF(state->record, const struct record_copy, record);
}

/* What a copy's hash must be; n_sets in bounds. */
void record_hash(const struct record_copy *c, uint8_t ret[static FILE_HASH]);
/* The first record of a new file: version 0, attempt 0, open. */
void record_init(struct state *state);
/* Finds the newest valid copy in the mapping; ZERO_EIO if there is none or it makes no sense. */
int record_load(struct state *state, struct fault *fault);

/* ---- undo.c ---- */

/* After a crash: puts old values back.  Returns how many slots were held. */
uint32_t undo_all(struct state *state);
/* Frees the slots of a new file. */
void undo_init(struct state *state);
/* Whether versions and slots are such as an interrupted process can have left. */
int undo_check(const struct state *state, struct fault *fault);

/* ---- tables.c ---- */

/* Room for the working copies, for state->n_tensors; 0 or -ENOMEM. */
int tables_new(struct state *state);
void tables_free(struct state *state);
/* The words of a new file: steps and versions 0, sets as the layout has them. */
void tables_init(struct state *state, const layout *l);
/* Once the record is loaded: checks the words of tensors and takes them into the working copies. */
int tables_load(struct state *state, struct fault *fault);
void tables_set_chunk_version(struct state *state, uint32_t chunk, uint64_t version);
/* Writes the side that does not count, and returns it. */
uint32_t tables_raise_steps(struct state *state);
uint32_t tables_write_present(struct state *state);
/* After the record that says so: takes the steps that count. */
void tables_take_steps(struct state *state);

/* ---- puts.c ---- */

/* The words of a new file: no put yet. */
void puts_init(struct state *state);
int puts_load(struct state *state, struct fault *fault);
/* Once the state is sure to be used: after a crash in a put it is unlike any other. */
void puts_settle(struct state *state);

/* ---- blobs.c ---- */

/* Opens the file of blobs if there is one; once the file is mapped. */
int blobs_open(struct state *state, struct fault *fault);
/* Once the state is sure to be used: what was staged for an attempt that is void by now is
 * forgotten, since nobody may remember that its number was used. */
void blobs_settle(struct state *state);
void blobs_close(struct state *state);
void blobs_unlink(struct state *state);
