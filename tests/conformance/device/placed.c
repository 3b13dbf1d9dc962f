#include "tests/conformance/device/placed.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/gpu/gpu.h"
#include "proto/dtype.h"
#include "tests/support/adamw.h"

enum { OPERANDS = 80, MARGIN = 512, CANARY = 0xa5, KINDS_MAX = 3, LINE = 64 };

/* Memory of an operand on each GPU; kept from call to call. */
static struct {
        uint8_t *memory;
        size_t bytes;
} slots[OPERANDS][KINDS_MAX];

static struct operand {
        const void *host;
        uint8_t *placed, *block; /* block: of the GPU, margins and all; NULL: on the host */
        size_t bytes, block_bytes, lead;
} operands[OPERANDS];
static uint32_t n_operands;
static uint64_t places = PLACES_IN_TURN, turn;

bool placed_open(void)
{
        struct fault fault;

        if (gpus_count() || gpus_open(getenv("ZEROD_CUDA_PLUGIN"), device_host(NULL), &fault) == 0)
                return true;
        fprintf(stderr, "%s\n", fault.text);
        return false;
}

uint32_t placed_kinds(void)
{
        return 1 + gpus_count() < KINDS_MAX ? 1 + gpus_count() : KINDS_MAX;
}

void placed_set(uint64_t to)
{
        places = to;
}

static uint32_t place_of(uint32_t operand)
{
        uint64_t digits = places;

        if (places == PLACES_IN_TURN)
                return (uint32_t)((turn + operand * (turn / 3)) % placed_kinds());
        for (uint32_t i = 0; i < operand; i++)
                digits /= placed_kinds();
        return (uint32_t)(digits % placed_kinds());
}

static uint8_t *slot(uint32_t operand, uint32_t kind, size_t bytes)
{
        struct fault fault;
        void *memory;

        if (slots[operand][kind].bytes >= bytes)
                return slots[operand][kind].memory;
        gpu_free(slots[operand][kind].memory);
        if (gpu_alloc(kind - 1, bytes, "a test's operand", &memory, &fault)) {
                fprintf(stderr, "%s\n", fault.text);
                abort();
        }
        slots[operand][kind].memory = memory;
        slots[operand][kind].bytes = bytes;
        return memory;
}

static void begin(void)
{
        n_operands = 0;
        turn++;
}

/* An operand, where it is to be.  One address twice is one operand. */
static void *place(const void *host, size_t bytes)
{
        struct operand *o = &operands[n_operands];
        uint32_t kind = place_of(n_operands);
        uint8_t *image;

        for (uint32_t i = 0; i < n_operands; i++)
                if (operands[i].host == host)
                        return operands[i].placed;
        assert(n_operands < OPERANDS);
        *o = (struct operand){ .host = host, .placed = (uint8_t *)host, .bytes = bytes };
        n_operands++;
        if (kind == 0)
                return o->placed;
        o->lead = MARGIN + (uintptr_t)host % LINE;
        o->block_bytes = o->lead + bytes + MARGIN;
        o->block = slot(n_operands - 1, kind, o->block_bytes);
        o->placed = o->block + o->lead;
        image = malloc(o->block_bytes);
        memset(image, CANARY, o->block_bytes);
        if (bytes)
                memcpy(image + o->lead, host, bytes);
        gpu_ops()->copy(o->block, image, o->block_bytes);
        free(image);
        return o->placed;
}

static void check_margin(const uint8_t *image, size_t from, size_t to)
{
        for (size_t i = from; i < to; i++)
                if (image[i] != CANARY) {
                        fprintf(stderr, "byte %zu of a margin was written\n", i);
                        abort();
                }
}

/* What was written comes back; what was only read is unchanged. */
static void end(void)
{
        for (uint32_t i = 0; i < n_operands; i++) {
                struct operand *o = &operands[i];
                uint8_t *image;

                if (!o->block)
                        continue;
                image = malloc(o->block_bytes);
                gpu_ops()->copy(image, o->block, o->block_bytes);
                check_margin(image, 0, o->lead);
                check_margin(image, o->lead + o->bytes, o->block_bytes);
                if (o->bytes && memcmp((void *)o->host, image + o->lead, o->bytes))
                        memcpy((void *)o->host, image + o->lead, o->bytes);
                free(image);
        }
}

static void placed_update(enum update_rule rule, const struct update_scalars *s, size_t n,
                          float *const *planes, const float *grad, const struct update_undo *undo)
{
        float *placed[UPDATE_PLANES] = { NULL };
        size_t bytes = n * sizeof(float);

        begin();
        for (uint32_t k = 0; k < update_planes(rule, s); k++)
                placed[k] = place(planes[k], bytes);
        grad = place(grad, bytes);
        gpu_ops()->update(rule, s, n, placed, grad, undo);
        end();
}

static void placed_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                        size_t n)
{
        begin();
        dst = place(dst, dtype_bytes(to, n));
        src = place(src, dtype_bytes(from, n));
        gpu_ops()->cast(to, dst, from, src, n);
        end();
}

static void placed_serve(enum zero_dtype to, void *dst, const float *src, size_t n)
{
        begin();
        dst = place(dst, dtype_bytes(to, n));
        src = place(src, n * sizeof *src);
        gpu_ops()->serve(to, dst, src, n);
        end();
}

static void placed_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n,
                              bool first)
{
        begin();
        acc = place(acc, n * sizeof *acc);
        src = place(src, dtype_bytes(from, n));
        gpu_ops()->accumulate(acc, from, src, n, first);
        end();
}

static void placed_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                       size_t k, size_t n)
{
        const void *placed[OPERANDS];

        begin();
        dst = place(dst, dtype_bytes(to, n));
        for (size_t i = 0; i < k; i++)
                placed[i] = place(src[i], dtype_bytes(from, n));
        gpu_ops()->sum(to, dst, from, placed, k, n);
        end();
}

static void placed_norm(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite)
{
        begin();
        gpu_ops()->norm(place(x, n * sizeof *x), n, scale, acc, finite);
        end();
}

static void placed_reduce(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                          enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite)
{
        const void *src[OPERANDS];
        struct reduce_piece placed[OPERANDS];
        size_t n = 0;

        begin();
        for (size_t i = 0; i < n_pieces; i++) {
                placed[i] = pieces[i];
                placed[i].acc = place(pieces[i].acc, pieces[i].n * sizeof(float));
                placed[i].src = src + n;
                for (size_t j = 0; j < pieces[i].k; j++)
                        src[n++] = place(pieces[i].src[j], dtype_bytes(from, pieces[i].n));
        }
        gpu_ops()->reduce(placed, n_pieces, wire, from, scale, norm, finite);
        end();
}

/* What lies in memory of a matrix. */
static size_t matrix_bytes(size_t lines, size_t length, size_t stride)
{
        return dtype_bytes(ZERO_BF16, (lines - 1) * stride + length);
}

static void place_view(struct matrix_view *m, size_t rows, size_t cols)
{
        m->x = place(m->x, m->transposed ? matrix_bytes(cols, rows, m->stride)
                                         : matrix_bytes(rows, cols, m->stride));
}

/* On the first GPU, or on the host what the plugin does not take: partial sums lie there. */
static void placed_product(const struct product *product, const float *from, float *to)
{
        uint64_t before = places, kinds = placed_kinds();
        bool host = from || to || (product->a.transposed && product->b.transposed);
        struct product p = *product;

        begin();
        places = host ? 0 : 1 + kinds + kinds * kinds + kinds * kinds * kinds;
        place_view(&p.a, p.rows, p.depth);
        place_view(&p.b, p.depth, p.cols);
        p.out = place(p.out, matrix_bytes(p.rows, p.cols, p.stride));
        if (p.add)
                p.add = place(p.add, matrix_bytes(p.rows, p.cols, p.stride));
        places = before;
        if (host) {
                gpu_ops()->product(&p, from, to);
        } else {
                gpu_product(&p);
                gpu_updated(0);
        }
        end();
}

static void *place_served(enum format f, const uint16_t *served, size_t n)
{
        return format_is_split(f) ? place(served, n * sizeof *served) : NULL;
}

static void placed_pack(enum format f, void *dst, uint16_t *served, const float *src, size_t n,
                        uint32_t dither)
{
        begin();
        dst = place(dst, format_bytes(f, n));
        src = place(src, n * sizeof *src);
        gpu_ops()->pack(f, dst, place_served(f, served, n), src, n, dither);
        end();
}

static void placed_unpack(enum format f, float *dst, const uint16_t *served, const void *src,
                          size_t n)
{
        begin();
        src = place(src, format_bytes(f, n));
        dst = place(dst, n * sizeof *dst);
        gpu_ops()->unpack(f, dst, place_served(f, served, n), src, n);
        end();
}

static void placed_zero(void *dst, size_t n)
{
        begin();
        gpu_ops()->zero(place(dst, n), n);
        end();
}

static void placed_copy(void *dst, const void *src, size_t n)
{
        begin();
        dst = place(dst, n);
        src = place(src, n);
        gpu_ops()->copy(dst, src, n);
        end();
}

/* A GPU's tensor cores add up in an order of their own; tests/gpu has what holds of them. */
static bool adds_in_order(void)
{
        return strncmp(gpu_info(0)->name, "fake", 4) == 0;
}

const struct device_ops *placed_ops(void)
{
        static struct device_ops ops = { .name = "gpu",
                                         .update = placed_update,
                                         .cast = placed_cast,
                                         .serve = placed_serve,
                                         .accumulate = placed_accumulate,
                                         .sum = placed_sum,
                                         .norm = placed_norm,
                                         .reduce = placed_reduce,
                                         .pack = placed_pack,
                                         .unpack = placed_unpack,
                                         .zero = placed_zero,
                                         .copy = placed_copy };

        if (!placed_open())
                return NULL;
        ops.product = adds_in_order() ? placed_product : NULL;
        return &ops;
}
