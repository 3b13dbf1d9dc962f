/*
 * Runs of equal pieces.
 *
 * An edge between two matrices may be a cut only where it is a multiple of LAYOUT_ALIGN.  Matrices
 * between such edges are one piece.  A stack whose entries are cut into unequal matrices is cut
 * between entries alone, so that a run is arithmetic.
 */
#include "proto/runs.h"

uint64_t run_work(uint64_t rows, uint64_t cols)
{
        uint64_t n = rows < cols ? rows : cols, m = rows < cols ? cols : rows;

        return n * n * (4 * m + 2 * n);
}

static struct run_blocks blocks_of(const struct layout_tensor *t)
{
        uint64_t cols = t->shape[t->ndim - 1], rows = t->shape[t->ndim - 2], work = 0;
        uint64_t entries = t->elements / (rows * cols);
        bool equal = true;

        for (uint32_t i = 0; i < t->n_rows; i++) {
                equal = equal && t->rows[i] == t->rows[0];
                work += run_work(t->rows[i], cols);
        }
        if (equal)
                return (struct run_blocks){ entries * t->n_rows, t->rows[0] * cols,
                                            work / t->n_rows };
        return (struct run_blocks){ entries, rows * cols, work };
}

/* Unequal matrices of one entry: the piece from the walk's row to the next edge. */
static void next_rows(struct run_walk *w, const struct layout_tensor *t, struct run *ret)
{
        uint64_t cols = t->shape[t->ndim - 1], end = w->at;

        do {
                end += t->rows[w->row] * cols;
                ret->work += run_work(t->rows[w->row++], cols);
        } while (w->row < t->n_rows && end % LAYOUT_ALIGN);
        ret->pieces = 1;
        ret->size = (w->row < t->n_rows ? end : layout_tensor_room(t)) - w->at;
}

/* First the pieces of as many blocks as end at an edge; then the rest, which is one piece. */
static void next_blocks(const struct run_walk *w, const struct layout_tensor *t, struct run *ret)
{
        struct run_blocks b = w->blocks;
        uint64_t each = 1;

        while (each * b.size % LAYOUT_ALIGN)
                each *= 2;
        if (w->at == 0 && !t->whole && b.count >= each) {
                ret->pieces = b.count / each;
                ret->size = each * b.size;
                ret->work = each * b.work;
        } else {
                ret->pieces = 1;
                ret->size = layout_tensor_room(t) - w->at;
                ret->work = (b.count - w->at / b.size) * b.work;
        }
}

/* An element's words: the master weight; of a trained one the gradient and two moments as of Adam,
 * or one moment where a matrix optimizer updates it. */
static uint64_t words_each(const struct layout_tensor *t, bool matrices)
{
        return t->frozen ? 1 : matrices ? 3 : 4;
}

bool run_next(struct run_walk *w, struct run *ret)
{
        const struct layout_tensor *t;

        for (;; w->tensor++, w->row = 0, w->at = 0) {
                if (w->tensor == w->g->n_tensors)
                        return false;
                t = &w->l->tensors[w->g->first_tensor + w->tensor];
                if (w->at < layout_tensor_room(t))
                        break;
        }
        if (w->at == 0)
                w->blocks = layout_matrices(t) ? blocks_of(t) : (struct run_blocks){ 0 };
        *ret = (struct run){ 0 };
        if (w->blocks.count == 0) {
                ret->size = t->whole ? layout_tensor_room(t) : LAYOUT_ALIGN;
                ret->pieces = layout_tensor_room(t) / ret->size;
        } else if (w->blocks.count == 1 && !t->whole) {
                next_rows(w, t, ret);
        } else {
                next_blocks(w, t, ret);
        }
        ret->words = words_each(t, w->blocks.count > 0) * ret->size;
        w->at += ret->pieces * ret->size;
        return true;
}
