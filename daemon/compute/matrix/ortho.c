/*
 * Newton-Schulz in stages and parts (matrix.h).
 *
 * The stages are: norm, division, and of each step gram, update and values.  The values change
 * between two buffers, so that the last step writes where the caller looks.
 *
 * A gram whose depth is too much for a part takes a stage for each slice of the depth.  Between two
 * slices its sums lie where the step writes its update and its values later.
 */
#include "daemon/compute/matrix/matrix.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "daemon/compute/device/place/place.h"
#include "proto/dtype.h"

enum {
        LINE = 64,
        PIECE = 2048,            /* elements in fp32 on the stack: whole blocks of a norm */
        PASS_ELEMENTS = 1 << 20, /* of a part of the first two stages */
        SLICE_SIDE = 96,         /* of a gram's squares, where its depth is cut */
        LEAST_SIDE = 24,         /* of any square */
        SLICES_BITS = 24,        /* slices of a gram, at most: 2^32 stages of 99 steps */
        BLOCK_ROWS = 12,         /* of AVX-512's kernel, which has the largest blocks */
        BLOCK_COLS = 32,
        /* times, in those of one multiplication with vectors */
        PART_WORK = 280000000, /* of a part: 2 ms with AVX-512 */
        PASS_WORK = 300,       /* of an element's norm and division */
        MOVE_WORK = 64,        /* of an element that moves to where it is multiplied */
        SCALAR_WORK = 1000,    /* of a multiplication without vectors */
};

enum kind { NORM, DIVISION, GRAM, UPDATE, VALUES };

struct stage {
        enum kind kind;
        uint32_t step, slice; /* slice: of a gram */
};

struct ortho_norm {
        struct exact_sum sum;
        bool finite;
};

static uint64_t smaller(uint64_t x, uint64_t y)
{
        return x < y ? x : y;
}

static uint64_t larger(uint64_t x, uint64_t y)
{
        return x > y ? x : y;
}

static uint64_t divided_up(uint64_t x, uint64_t y)
{
        return x / y + (x % y > 0);
}

/* ---- memory ---------------------------------------------------------------------- */

static uint32_t pass_parts(uint64_t elements)
{
        return (uint32_t)divided_up(elements, PASS_ELEMENTS);
}

static size_t lines(uint64_t bytes)
{
        return divided_up(bytes, LINE) * LINE;
}

static size_t norms_bytes(uint64_t elements)
{
        return lines(pass_parts(elements) * sizeof(struct ortho_norm));
}

size_t ortho_bytes(uint64_t rows, uint64_t cols)
{
        uint64_t n = smaller(rows, cols);

        assert(rows > 0 && cols > 0 && rows <= ORTHO_MOST / cols);
        return 2 * (lines(rows * cols * sizeof(uint16_t)) + lines(n * n * sizeof(uint16_t))) +
               norms_bytes(rows * cols);
}

void ortho_begin(struct ortho *o, uint64_t rows, uint64_t cols, const struct ortho_params *params,
                 void *memory, const struct device_ops *ops)
{
        uint64_t n = smaller(rows, cols);
        size_t plane = lines(rows * cols * sizeof(uint16_t));
        char *at = memory;

        assert(ops->product && params->steps <= ORTHO_STEPS);
        *o = (struct ortho){ .ops = ops, .params = *params, .rows = rows, .cols = cols };
        o->values = (uint16_t *)at;
        o->update = (uint16_t *)(at + plane);
        o->other = (uint16_t *)(at + plane + lines(n * n * sizeof(uint16_t)));
        o->gram = (uint16_t *)(at + 2 * plane + lines(n * n * sizeof(uint16_t)));
        o->norms = (struct ortho_norm *)(at + ortho_bytes(rows, cols) - norms_bytes(rows * cols));
}

uint16_t *ortho_values(const struct ortho *o)
{
        return o->values;
}

/* Where the values are before a step; behind the last one, where the caller looks. */
static uint16_t *values_before(const struct ortho *o, uint32_t step)
{
        return (o->params.steps - step) % 2 ? o->other : o->values;
}

/* ---- norm and division ------------------------------------------------------------- */

/* The elements of a part of the first two stages. */
static void pass_range(const struct ortho *o, uint32_t part, uint64_t *ret_first, uint64_t *ret_end)
{
        *ret_first = (uint64_t)part * PASS_ELEMENTS;
        *ret_end = smaller(o->rows * o->cols, *ret_first + PASS_ELEMENTS);
}

static void norm_part(const struct ortho *o, uint32_t part)
{
        struct ortho_norm *norm = &o->norms[part];
        uint64_t i, end;
        float x[PIECE];

        exact_sum_init(&norm->sum);
        norm->finite = true;
        pass_range(o, part, &i, &end);
        for (size_t n; i < end; i += n) {
                n = smaller(end - i, PIECE);
                o->ops->cast(ZERO_FP32, x, ZERO_BF16, o->values + i, n);
                o->ops->norm(x, n, 1.0, &norm->sum, &norm->finite);
        }
}

static float bf16(float x)
{
        return dtype_fp32_from_bf16(dtype_bf16_from_fp32(x));
}

static float divisor(const struct ortho *o, struct exact_sum *sum, bool finite)
{
        float norm = bf16((float)sqrt(exact_sum_value(sum))), eps = bf16(o->params.eps);

        if (!finite)
                return NAN;
        return norm < eps ? eps : norm;
}

static float divisor_of_norms(const struct ortho *o)
{
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        for (uint32_t i = 0; i < pass_parts(o->rows * o->cols); i++) {
                exact_sum_merge(&sum, &o->norms[i].sum);
                finite = finite && o->norms[i].finite;
        }
        return divisor(o, &sum, finite);
}

static void division_part(const struct ortho *o, uint32_t part)
{
        float by = divisor_of_norms(o), x[PIECE];
        uint16_t *to = values_before(o, 0);
        uint64_t i, end;

        pass_range(o, part, &i, &end);
        for (size_t n; i < end; i += n) {
                n = smaller(end - i, PIECE);
                o->ops->cast(ZERO_FP32, x, ZERO_BF16, o->values + i, n);
                for (size_t k = 0; k < n; k++)
                        x[k] /= by;
                o->ops->cast(ZERO_BF16, to + i, ZERO_FP32, x, n);
        }
}

/* ---- products ---------------------------------------------------------------------- */

/* A product of whole matrices; rows and cols of `all` may be any number here. */
struct whole {
        struct product all;
        bool half;         /* it is symmetric: what lies above the diagonal is mirrored */
        const float *from; /* [rows][cols] by all.stride: device_ops.product() */
        float *to;
};

static struct whole whole_of(const struct ortho *o, enum kind kind, uint32_t step)
{
        const uint16_t *values = values_before(o, step);
        bool tall = o->rows > o->cols;
        uint64_t n = smaller(o->rows, o->cols);
        struct matrix_view x = { values, o->cols, false }, x_transposed = { values, o->cols, true };
        struct matrix_view gram = { o->gram, n, false }, update = { o->update, n, false };
        struct whole w = { .all = { .rows = n, .cols = n, .depth = n, .stride = n }, .half = true };

        switch (kind) {
        case GRAM:
                w.all.depth = larger(o->rows, o->cols);
                w.all.a = tall ? x_transposed : x;
                w.all.b = tall ? x : x_transposed;
                w.all.out = o->gram;
                break;
        case UPDATE:
                w.all.a = w.all.b = gram;
                w.all.add = o->gram;
                w.all.alpha = o->params.c;
                w.all.beta = o->params.b;
                w.all.out = o->update;
                break;
        default: /* VALUES */
                w.half = false;
                w.all.rows = o->rows;
                w.all.cols = o->cols;
                w.all.a = tall ? x : update;
                w.all.b = tall ? update : x;
                w.all.add = values;
                w.all.alpha = 1;
                w.all.beta = o->params.a;
                w.all.out = values_before(o, step + 1);
                w.all.stride = o->cols;
                break;
        }
        return w;
}

static struct matrix_view view_at(struct matrix_view m, size_t row, size_t col)
{
        m.x += m.transposed ? col * m.stride + row : row * m.stride + col;
        return m;
}

/* How a product is cut: into squares, and these into parts. */
struct cut {
        uint64_t side, down, across; /* squares */
        uint64_t squares, each;      /* in all, and of a part */
        uint64_t work;               /* of a square */
};

/* What a square takes for each of the depth.  Vector kernels compute whole blocks, and rows and
 * columns move. */
static uint64_t square_area(const struct ortho *o, uint64_t rows, uint64_t cols)
{
        if (!strncmp(o->ops->name, "scalar", strlen("scalar")))
                return rows * cols * SCALAR_WORK;
        return (divided_up(rows, BLOCK_ROWS) * BLOCK_ROWS + MOVE_WORK) *
               (divided_up(cols, BLOCK_COLS) * BLOCK_COLS + MOVE_WORK);
}

static uint64_t square_work(const struct ortho *o, const struct product *p, uint64_t side,
                            uint64_t depth)
{
        return square_area(o, smaller(side, p->rows), smaller(side, p->cols)) * (depth + MOVE_WORK);
}

static uint64_t slice_depth(const struct ortho *o)
{
        uint64_t side = smaller(SLICE_SIDE, smaller(o->rows, o->cols));
        uint64_t depth = larger(PART_WORK / square_area(o, side, side), 2 * MOVE_WORK) - MOVE_WORK;

        return larger(depth, larger(o->rows, o->cols) >> SLICES_BITS);
}

static uint32_t slices(const struct ortho *o)
{
        return (uint32_t)divided_up(larger(o->rows, o->cols), slice_depth(o));
}

/* [n][n], in the place of the update and of the values after the step, which lie side by side. */
static float *gram_sums(const struct ortho *o, uint32_t step)
{
        uint16_t *next = values_before(o, step + 1);

        return (float *)(next < o->update ? next : o->update);
}

/* A stage's product: that of whole matrices, or of a slice of their depth. */
static struct whole product_of(const struct ortho *o, struct stage stage)
{
        struct whole w = whole_of(o, stage.kind, stage.step);
        uint64_t first = stage.slice * slice_depth(o);

        if (stage.kind == GRAM) {
                float *sums = gram_sums(o, stage.step);

                w.from = stage.slice > 0 ? sums : NULL;
                w.to = stage.slice + 1 < slices(o) ? sums : NULL;
                w.all.a = view_at(w.all.a, 0, first);
                w.all.b = view_at(w.all.b, first, 0);
                w.all.depth = smaller(slice_depth(o), w.all.depth - first);
        }
        return w;
}

static struct cut cut_of(const struct ortho *o, const struct whole *w)
{
        const struct product *p = &w->all;
        struct cut c = { .side = PRODUCT_SIDE };
        /* the last slice has the squares of the others: what lies below the diagonal has sums only
         * in a square on the diagonal */
        uint64_t parts, depth = w->from ? slice_depth(o) : p->depth;

        /* smaller ones take longer in all, so one of SLICE_SIDE may take twice as long */
        while (c.side > LEAST_SIDE &&
               square_work(o, p, c.side, depth) > (c.side > SLICE_SIDE ? 1 : 2) * PART_WORK)
                c.side /= 2;
        c.work = square_work(o, p, c.side, p->depth);
        c.down = divided_up(p->rows, c.side);
        c.across = divided_up(p->cols, c.side);
        c.squares = w->half ? c.down * (c.down + 1) / 2 : c.down * c.across;
        parts = divided_up(c.squares, larger(1, PART_WORK / c.work));
        c.each = divided_up(c.squares, parts);
        return c;
}

/* Square `i` of all: of half a matrix row 0 has all, and each row one less than the row above. */
static void square_at(const struct whole *w, const struct cut *c, uint64_t i, uint64_t *ret_down,
                      uint64_t *ret_across)
{
        uint64_t down = 0, before = 0;

        if (w->half) {
                for (; i >= c->across - down; down++)
                        i -= c->across - down;
                before = down;
        } else {
                down = i / c->across;
                i %= c->across;
        }
        *ret_down = down;
        *ret_across = before + i;
}

/* from: [rows][cols]; to[c][r] = from[r][c]. */
static void mirror(uint16_t *to, const uint16_t *from, size_t stride, size_t rows, size_t cols)
{
        for (size_t c = 0; c < cols; c++)
                for (size_t r = 0; r < rows; r++)
                        to[c * stride + r] = from[r * stride + c];
}

static void square(const struct ortho *o, const struct whole *w, uint64_t side, size_t row,
                   size_t col)
{
        size_t at = row * w->all.stride + col;
        struct product p = w->all;

        p.rows = smaller(side, p.rows - row);
        p.cols = smaller(side, p.cols - col);
        p.a = view_at(p.a, row, 0);
        p.b = view_at(p.b, 0, col);
        if (p.add)
                p.add += at;
        p.out += at;
        o->ops->product(&p, w->from ? w->from + at : NULL, w->to ? w->to + at : NULL);
        if (w->half && row != col && !w->to)
                mirror(w->all.out + col * p.stride + row, p.out, p.stride, p.rows, p.cols);
}

static void product_part(const struct ortho *o, struct stage stage, uint32_t part)
{
        struct whole w = product_of(o, stage);
        struct cut c = cut_of(o, &w);
        uint64_t first = part * c.each, end = smaller(c.squares, first + c.each);

        for (uint64_t i = first; i < end; i++) {
                uint64_t down, across;

                square_at(&w, &c, i, &down, &across);
                square(o, &w, c.side, down * c.side, across * c.side);
        }
}

/* ---- stages ------------------------------------------------------------------------ */

static uint32_t step_stages(const struct ortho *o)
{
        return slices(o) + 2;
}

static struct stage stage_of(const struct ortho *o, uint32_t stage)
{
        uint32_t i = stage < GRAM ? 0 : (stage - GRAM) % step_stages(o), last = slices(o) - 1;

        if (stage < GRAM)
                return (struct stage){ .kind = (enum kind)stage };
        return (struct stage){ .kind = i > last ? GRAM + (i - last) : GRAM,
                               .step = (stage - GRAM) / step_stages(o),
                               .slice = i > last ? 0 : i };
}

uint32_t ortho_stages(const struct ortho *o)
{
        return GRAM + step_stages(o) * o->params.steps;
}

uint32_t ortho_parts(const struct ortho *o, uint32_t stage)
{
        struct stage s = stage_of(o, stage);
        struct whole w;
        struct cut c;

        assert(stage < ortho_stages(o));
        if (s.kind < GRAM)
                return pass_parts(o->rows * o->cols);
        w = product_of(o, s);
        c = cut_of(o, &w);
        return (uint32_t)divided_up(c.squares, c.each);
}

void ortho_part(const struct ortho *o, uint32_t stage, uint32_t part)
{
        struct stage s = stage_of(o, stage);

        assert(part < ortho_parts(o, stage));
        if (s.kind == NORM)
                norm_part(o, part);
        else if (s.kind == DIVISION)
                division_part(o, part);
        else
                product_part(o, s, part);
}

double ortho_load(const struct ortho *o)
{
        double step = 0;

        for (uint32_t i = 0; i < step_stages(o); i++) {
                struct whole w = product_of(o, stage_of(o, GRAM + i));
                struct cut c = cut_of(o, &w);

                step += (double)c.squares * (double)c.work;
        }
        return ((double)o->rows * (double)o->cols * PASS_WORK + o->params.steps * step) /
               (double)PART_WORK;
}

/* ---- on another device ----------------------------------------------------------- */

size_t ortho_launch_bytes(uint64_t rows, uint64_t cols)
{
        uint64_t room = lines(rows * cols * sizeof(uint16_t)) + rows * cols * sizeof(float);

        return larger(ortho_bytes(rows, cols), room);
}

float *ortho_launch_room(const struct ortho *o)
{
        return (float *)o->update;
}

void ortho_launch(const struct ortho *o)
{
        const void *values = o->values;
        const struct reduce_piece piece = {
                .n = o->rows * o->cols, .k = 1, .src = &values, .first = true
        };
        struct exact_sum sum;
        bool finite = true;

        exact_sum_init(&sum);
        o->ops->reduce(&piece, 1, ZERO_BF16, ZERO_BF16, 1.0, &sum, &finite);
        place_divide(values_before(o, 0), o->values, divisor(o, &sum, finite), piece.n);
        for (uint32_t step = 0; step < o->params.steps; step++)
                for (enum kind kind = GRAM; kind <= VALUES; kind++) {
                        struct whole w = whole_of(o, kind, step);

                        place_product(&w.all);
                }
}

double ortho_flops(uint64_t rows, uint64_t cols, uint32_t steps)
{
        double n = (double)smaller(rows, cols), m = (double)larger(rows, cols);

        return steps * (4 * n * n * m + 2 * n * n * n);
}
