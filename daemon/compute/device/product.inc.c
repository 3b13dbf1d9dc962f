/*
 * The product of two matrices (product.h), over the lanes of the including file.
 *
 * The depth is cut.  Of each cut, all of a is widened to fp32, which L2 holds, and of b as many
 * columns as a block has, which L1 holds.  Between two cuts the sums lie in memory, in fp32, so an
 * element's chain goes on as if there were no cut.
 */

enum {
        BLOCK_COLS = 16 * BLOCK_LANES,
        CUT = 192,             /* of the depth, at most */
        A_STRIDE = CUT + 16,   /* so rows of a block lie in different sets of L1: 1 to 2 % */
        TILE = 16,             /* rows that are transposed together */
        TILE_WIDTH = 2 * TILE, /* and their columns */
};

/* What is widened and summed, in memory of the calling thread. */
struct workspace {
        float a[PRODUCT_SIDE][A_STRIDE];
        float b[CUT][BLOCK_COLS];
        float sum[PRODUCT_SIDE][PRODUCT_SIDE];
};

/* out[r][c] = x[r][c]; what is missing of the last sixteen columns is 0. */
static void widen(const uint16_t *x, size_t stride, size_t rows, size_t cols, float *out,
                  size_t out_stride)
{
        for (size_t r = 0; r < rows; r++, x += stride, out += out_stride) {
                size_t c = 0;

                for (; c + 16 <= cols; c += 16)
                        v16_store(out + c, v16_from_bf16(h16_load(x + c)));
                if (c < cols) {
                        uint16_t rest[16] = { 0 };

                        memcpy(rest, x + c, (cols - c) * sizeof *x);
                        v16_store(out + c, v16_from_bf16(h16_load(rest)));
                }
        }
}

/* out[c][r] = x[r][c] of a whole tile.  Two elements of a row move as one word. */
ALWAYS_INLINE void transpose_tile(const uint16_t *x, size_t stride, float *out, size_t out_stride)
{
        v16 pairs[TILE];

        for (size_t r = 0; r < TILE; r++)
                pairs[r] = v16_load((const float *)(const void *)(x + r * stride));
        v16_transpose(pairs);
        for (size_t c = 0; c < TILE; c++) {
                v16_store(out + 2 * c * out_stride, v16_first_bf16(pairs[c]));
                v16_store(out + (2 * c + 1) * out_stride, v16_second_bf16(pairs[c]));
        }
}

/* The same of a tile that has fewer rows or columns; what is missing is 0. */
static __attribute__((noinline)) void transpose_rest(const uint16_t *x, size_t stride, size_t rows,
                                                     size_t cols, float *out, size_t out_stride)
{
        uint16_t rest[TILE][TILE_WIDTH] = { 0 };

        for (size_t r = 0; r < rows && r < TILE; r++)
                memcpy(rest[r], x + r * stride,
                       (cols < TILE_WIDTH ? cols : TILE_WIDTH) * sizeof *x);
        transpose_tile(rest[0], TILE_WIDTH, out, out_stride);
}

/* out[c][r] = x[r][c]; what is missing of the last tiles is 0. */
static void transpose(const uint16_t *x, size_t stride, size_t rows, size_t cols, float *out,
                      size_t out_stride)
{
        for (size_t r = 0; r < rows; r += TILE)
                for (size_t c = 0; c < cols; c += TILE_WIDTH) {
                        const uint16_t *from = x + r * stride + c;
                        float *to = out + c * out_stride + r;

                        if (rows - r >= TILE && cols - c >= TILE_WIDTH)
                                transpose_tile(from, stride, to, out_stride);
                        else
                                transpose_rest(from, stride, rows - r, cols - c, to, out_stride);
                }
}

/* Of the last block rows and columns that no element needs are 0: as a subnormal, what was in
 * memory before would slow the block down. */
static void load_a(const struct product *p, size_t k, size_t depth, struct workspace *w)
{
        const struct matrix_view *a = &p->a;

        if (a->transposed)
                transpose(a->x + k * a->stride, a->stride, depth, p->rows, w->a[0], A_STRIDE);
        else
                widen(a->x + k, a->stride, p->rows, depth, w->a[0], A_STRIDE);
        for (size_t i = p->rows; i % BLOCK_ROWS; i++)
                memset(w->a[i], 0, sizeof w->a[i]);
}

static void load_b(const struct product *p, size_t k, size_t depth, size_t j, struct workspace *w)
{
        const struct matrix_view *b = &p->b;
        size_t cols = p->cols - j < BLOCK_COLS ? p->cols - j : BLOCK_COLS;

        if (cols < BLOCK_COLS)
                memset(w->b, 0, sizeof w->b);
        if (b->transposed)
                transpose(b->x + j * b->stride + k, b->stride, cols, depth, w->b[0], BLOCK_COLS);
        else
                widen(b->x + k * b->stride + j, b->stride, depth, cols, w->b[0], BLOCK_COLS);
}

/* A block's sums over a cut. */
ALWAYS_INLINE void block(const float *a, const float *b, size_t depth, float *sum, bool first)
{
        v16 x[BLOCK_ROWS][BLOCK_LANES];

        for (size_t i = 0; i < BLOCK_ROWS; i++)
                for (size_t l = 0; l < BLOCK_LANES; l++)
                        x[i][l] = first ? v16_set(0) : v16_load(sum + i * PRODUCT_SIDE + 16 * l);
        for (size_t k = 0; k < depth; k++, a++, b += BLOCK_COLS) {
                v16 y[BLOCK_LANES];

                for (size_t l = 0; l < BLOCK_LANES; l++)
                        y[l] = v16_load(b + 16 * l);
                for (size_t i = 0; i < BLOCK_ROWS; i++) {
                        v16 factor = v16_set(a[i * A_STRIDE]);

                        for (size_t l = 0; l < BLOCK_LANES; l++)
                                x[i][l] = v16_fma(factor, y[l], x[i][l]);
                }
        }
        for (size_t i = 0; i < BLOCK_ROWS; i++)
                for (size_t l = 0; l < BLOCK_LANES; l++)
                        v16_store(sum + i * PRODUCT_SIDE + 16 * l, x[i][l]);
}

ALWAYS_INLINE h16 rounded(const struct product *p, v16 sum, h16 add)
{
        if (p->add)
                sum = v16_add(v16_mul(v16_set(p->alpha), sum),
                              v16_mul(v16_set(p->beta), v16_from_bf16(add)));
        return v16_to_bf16(sum);
}

static void round_row(const struct product *p, const float *sum, size_t i)
{
        const uint16_t *add = p->add ? p->add + i * p->stride : NULL;
        uint16_t *out = p->out + i * p->stride;
        uint16_t rest[16] = { 0 };
        size_t j = 0;

        for (; j + 16 <= p->cols; j += 16)
                h16_store(out + j, rounded(p, v16_load(sum + j), h16_load(add ? add + j : rest)));
        if (j == p->cols)
                return;
        if (add)
                memcpy(rest, add + j, (p->cols - j) * sizeof *rest);
        h16_store(rest, rounded(p, v16_load(sum + j), h16_load(rest)));
        memcpy(out + j, rest, (p->cols - j) * sizeof *rest);
}

/* What is beside the product in its last blocks is 0, as in load_a(). */
static void load_sums(const struct product *p, const float *from, struct workspace *w)
{
        memset(w->sum, 0, sizeof w->sum);
        for (size_t i = 0; i < p->rows; i++)
                memcpy(w->sum[i], from + i * p->stride, p->cols * sizeof *from);
}

static void vector_product(const struct product *p, const float *from, float *to)
{
        struct workspace w;

        assert(p->rows <= PRODUCT_SIDE && p->cols <= PRODUCT_SIDE && p->depth >= 1);
        if (from)
                load_sums(p, from, &w);
        for (size_t k = 0, depth; k < p->depth; k += depth) {
                depth = p->depth - k < CUT ? p->depth - k : CUT;
                load_a(p, k, depth, &w);
                for (size_t j = 0; j < p->cols; j += BLOCK_COLS) {
                        load_b(p, k, depth, j, &w);
                        for (size_t i = 0; i < p->rows; i += BLOCK_ROWS)
                                block(w.a[i], w.b[0], depth, &w.sum[i][j], k == 0 && !from);
                }
        }
        for (size_t i = 0; i < p->rows; i++)
                if (to)
                        memcpy(to + i * p->stride, w.sum[i], p->cols * sizeof *to);
                else
                        round_row(p, w.sum[i], i);
}
