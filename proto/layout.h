/*
 * A model's layout: ordered groups of ordered tensors, each group laid flat with its tensors
 * aligned to LAYOUT_ALIGN elements (256 bytes at two bytes each).  Pure.
 *
 * A layout from layout_from_message(), or one that passed layout_check(), satisfies every limit of
 * zero_types.h and needs no further check.
 */
#pragma once

#include <stdio.h>

#include "proto/fault.h"
#include "proto/client.pb-c.h"

/* LAYOUT_NORMS: tensors of one answer with norms. */
enum { LAYOUT_ALIGN = 128, LAYOUT_HASH = 32, LAYOUT_NORMS = 512 };
/* LAYOUT_ROWS_MAX: matrices that lie below one another in a tensor; LAYOUT_ROWS_SUM: the same of all
 * tensors, because a partition looks at each. */
enum { LAYOUT_ROWS_MAX = 256, LAYOUT_ROWS_SUM = 1 << 20 };
enum { LAYOUT_FORMAT_MAX = 15 }; /* bytes of a format's name */
enum { LAYOUT_FORMATS_MAX = 16 };
/* The least divisor of a group: the factor that its gradients are multiplied by stays finite. */
#define LAYOUT_DIVISOR_MIN 1e-30

struct layout_tensor {
        char *name;
        uint32_t group;
        uint32_t ndim;
        uint64_t shape[ZERO_DIM_MAX];
        bool frozen;
        bool whole;      /* one owner has all of it */
        char *optimizer; /* by name; NULL: its group's */
        /* Its last two dimensions are matrices, cut into blocks of so many rows each, which a
         * matrix optimizer updates.  Each matrix has one owner.  n_rows 0: it has none. */
        uint64_t *rows;
        uint32_t n_rows;
        uint32_t set;
        enum zero_init init;
        double init_value;
        uint64_t init_seed;
        uint64_t elements; /* words, in a group of bytes */
        uint64_t offset;   /* in the group, elements */
};

struct layout_group {
        char *name;
        enum zero_dtype dtype;
        uint32_t *ranks; /* ascending; NULL: all */
        uint32_t n_ranks;
        double divisor;                         /* 0: number of ranks */
        char optimizer[ZERO_OPTIMIZER_MAX + 1]; /* by name; "": the daemon's first */
        bool ema;                               /* owners keep the average of the weights, too */
        char state[LAYOUT_FORMAT_MAX + 1];      /* format of moments by name; "": fp32 */
        char master[LAYOUT_FORMAT_MAX + 1];     /* of the master weights, likewise */
        bool eager; /* owners update the group as soon as its gradient is complete */
        uint32_t first_tensor, n_tensors; /* consecutive in layout.tensors */
        uint64_t elements; /* of the flat array, a multiple of LAYOUT_ALIGN; may be 0 */
};

struct zero_layout {
        struct layout_group *groups;
        uint32_t n_groups;
        struct layout_tensor *tensors;
        uint32_t n_tensors;
        uint64_t elements; /* of all groups */
        uint32_t n_rows;   /* of all tensors */
        bool has_base;     /* the ranks read frozen weights that lie beside the groups */
        uint8_t base[LAYOUT_HASH];
        char error[256];
};
typedef struct zero_layout layout;

int layout_new(layout **ret);
void layout_free(layout *l);
/* Tensors of a group must be added before the next group is begun. */
int layout_add_group(layout *l, const char *name, enum zero_dtype dtype, const uint32_t *ranks,
                     uint32_t n_ranks, double divisor, uint32_t *ret_group, struct fault *fault);
/* A name "...-ema" sets `ema`, and "...+8bit" the format, too: messages and files have them so
 * (layout_optimizer()). */
int layout_set_optimizer(layout *l, uint32_t group, const char *name, struct fault *fault);
int layout_set_ema(layout *l, uint32_t group, struct fault *fault);
/* Formats of the group's moments and master weights by name, which the daemon knows; NULL: "fp32".
 */
int layout_set_state(layout *l, uint32_t group, const char *state, const char *master,
                     struct fault *fault);
void layout_set_base(layout *l, const uint8_t hash[static LAYOUT_HASH]);
int layout_set_whole(layout *l, uint32_t tensor, struct fault *fault);
int layout_set_tensor_optimizer(layout *l, uint32_t tensor, const char *name, struct fault *fault);
/* rows: of each matrix, which are together those of the tensor's last but one dimension. */
int layout_set_matrices(layout *l, uint32_t tensor, const uint64_t *rows, uint32_t n_rows,
                        struct fault *fault);
void layout_no_matrices(layout *l, uint32_t tensor);
int layout_set_eager(layout *l, uint32_t group, bool eager, struct fault *fault);
int layout_add_tensor(layout *l, const struct layout_tensor *t, uint32_t *ret_tensor,
                      struct fault *fault);
/* Checks that names are unique, there is a group, and totals are in range. */
int layout_check(const layout *l, struct fault *fault);

/* BLAKE2b over everything that must agree between ranks. */
void layout_hash(const layout *l, uint8_t ret_hash[static LAYOUT_HASH]);
/* True if equal; else `text` names the first difference ("group 3 'h.2', tensor
 * 'wte': shape [50257, 768] here, [50304, 768] there"). */
bool layout_equal(const layout *here, const layout *there, char *text, size_t size);

/* The same of two groups, whatever their ranks. */
bool layout_group_equal(const layout *here, uint32_t g, const layout *there, uint32_t h, char *text,
                        size_t size);

/* ---- layout_compose.c: ranks that work on different groups ---- */

/* What a rank brings: the groups that it works on, which list no ranks. */
struct layout_part {
        const layout *layout;
        uint32_t stage;
};
/*
 * Puts the parts of all ranks together.  A group has the ranks that bring it; groups are in the
 * order of their first stage, then of its first rank, then of that rank's part.  ZERO_ELAYOUT:
 * ranks bring different groups under one name, or one tensor in two groups.
 */
int layout_compose(const struct layout_part *parts /* [world_size] */, uint32_t world_size,
                   layout **ret, struct fault *fault);
/* Whether these are the groups of the rank; else `text` says how they differ. */
bool layout_has_part(const layout *whole, const layout *part, uint32_t rank, char *text,
                     size_t size);

/*
 * The optimizer in messages and hashes: "-ema" behind its name says that the group keeps averages,
 * and "+8bit+bf16+8" behind that in which formats its moments and master weights are.  A release
 * that does not know these refuses the name.
 */
struct layout_optimizer {
        char text[ZERO_OPTIMIZER_MAX + sizeof("-ema++") + 2 * LAYOUT_FORMAT_MAX];
};
struct layout_optimizer layout_optimizer(const struct layout_group *g);

/* Whether a rank pushes gradients of the group; the group's divisor in effect. */
bool layout_group_has_rank(const struct layout_group *g, uint32_t rank);
double layout_group_divisor(const struct layout_group *g, uint32_t world_size);
bool layout_group_trainable(const layout *l, uint32_t group);
bool layout_group_whole(const layout *l, uint32_t group); /* one of its tensors is whole */
/* The optimizer of a tensor by name; "": the daemon's first. */
const char *layout_tensor_optimizer(const layout *l, uint32_t tensor);

/* One matrix of a tensor, row by row. */
struct layout_matrix {
        uint64_t first; /* element of the tensor */
        uint64_t rows, cols;
};
/* How many matrices a tensor has. */
uint64_t layout_matrices(const struct layout_tensor *t);
struct layout_matrix layout_matrix(const struct layout_tensor *t, uint64_t i);
/* The matrix that has an element of the tensor. */
uint64_t layout_matrix_at(const struct layout_tensor *t, uint64_t element);
/* Elements that a tensor takes in its group, with the gap behind it. */
uint64_t layout_tensor_room(const struct layout_tensor *t);
struct layout_formats {
        const char *state, *master; /* of moments and master weights; the layout owns them */
        uint32_t n_groups;          /* that have both */
};
/* The pairs of formats that groups have, without fp32 for both, in the order of the groups.  Returns
 * how many; those beyond LAYOUT_FORMATS_MAX, which no job has, are left out. */
uint32_t layout_formats(const layout *l, struct layout_formats ret[static LAYOUT_FORMATS_MAX]);
/* Bytes of so many elements of the group, in gather windows and on their way there. */
uint64_t layout_group_bytes(const struct layout_group *g, uint64_t elements);
/* Bytes of an element as owners serve it beside the master weights; 0: they serve those. */
size_t layout_group_served(const struct layout_group *g);

int layout_from_message(const Zero__Layout *m, layout **ret, struct fault *fault);
/* The layout as a message, which the caller frees by zero__layout__free_unpacked(m, NULL). */
int layout_to_message(const layout *l, Zero__Layout **ret);
int layout_copy(const layout *l, layout **ret);
