/*
 * The vector kernels, written once over sixteen lanes: the including file brings
 * v16, h16 and d16 (lanes_*.h) and KERNELS_OPS, KERNELS_NAME.
 *
 * Rule: what is left at the ends of a range goes to the scalar truth.
 */
#include <assert.h>
#include <string.h>

#include "daemon/compute/device/host.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
        LINE = 64,
        PAIR = 32,  /* elements: a line of 16-bit values */
        AHEAD = 64, /* elements: four lines of each plane, as many as a core has in flight */
};

/* The address may lie beyond the array: a prefetch reads nothing and never faults. */
ALWAYS_INLINE void fetch_ahead(const float *x, size_t i)
{
        _mm_prefetch((const char *)((uintptr_t)(x + i) + AHEAD * sizeof(float)), _MM_HINT_T0);
}

/* The planes of a rule.  Those that it lacks are copies of p that nobody looks at. */
struct lanes {
        v16 p, m, v, e;
};

ALWAYS_INLINE struct lanes adam_step(struct adam_scalars s, v16 g, struct lanes x)
{
        x.m = v16_add(x.m, v16_mul(v16_sub(g, x.m), v16_set(s.one_minus_beta1)));
        x.v = v16_add(v16_mul(x.v, v16_set(s.beta2)),
                      v16_mul(v16_mul(g, g), v16_set(s.one_minus_beta2)));
        v16 root = v16_sqrt(x.v);
        if (s.sqrt_bias2 != 1) /* else the quotient is the root */
                root = v16_div(root, v16_set(s.sqrt_bias2));
        v16 below = v16_add(root, v16_set(s.eps));
        x.p = v16_sub(x.p, v16_mul(v16_set(s.step_size), v16_div(x.m, below)));
        return x;
}

ALWAYS_INLINE struct lanes adamw_lanes(struct update_scalars s, v16 g, struct lanes x)
{
        x.p = v16_mul(x.p, v16_set(s.adam.decay));
        return adam_step(s.adam, g, x);
}

ALWAYS_INLINE struct lanes adam_lanes(struct update_scalars s, v16 g, struct lanes x)
{
        return adam_step(s.adam, v16_add(g, v16_mul(x.p, v16_set(s.adam.decay))), x);
}

ALWAYS_INLINE struct lanes lion_lanes(struct update_scalars scalars, v16 g, struct lanes x)
{
        struct lion_scalars s = scalars.lion;
        v16 c = v16_add(v16_mul(x.m, v16_set(s.beta1)), v16_mul(g, v16_set(s.one_minus_beta1)));

        x.p = v16_sub(v16_mul(x.p, v16_set(s.decay)), v16_signed(v16_set(s.lr), c));
        x.m = v16_add(v16_mul(x.m, v16_set(s.beta2)), v16_mul(g, v16_set(s.one_minus_beta2)));
        return x;
}

ALWAYS_INLINE struct lanes sgd_lanes(struct update_scalars scalars, v16 g, struct lanes x)
{
        struct sgd_scalars s = scalars.sgd;
        v16 d = v16_add(g, v16_mul(x.p, v16_set(s.weight_decay)));

        x.p = v16_sub(x.p, v16_mul(v16_set(s.lr), d));
        return x;
}

ALWAYS_INLINE struct lanes sgd_momentum_lanes(struct update_scalars scalars, v16 g, struct lanes x)
{
        struct sgd_scalars s = scalars.sgd;
        v16 d = v16_add(g, v16_mul(x.p, v16_set(s.weight_decay)));

        x.m = v16_add(v16_mul(x.m, v16_set(s.momentum)),
                      v16_mul(d, v16_set(s.one_minus_dampening)));
        v16 step = v16_add(v16_mul(d, v16_set(s.g_part)), v16_mul(x.m, v16_set(s.b_part)));
        x.p = v16_sub(x.p, v16_mul(v16_set(s.lr), step));
        return x;
}

ALWAYS_INLINE struct lanes momentum_lanes(struct update_scalars s, v16 g, struct lanes x)
{
        x.p = v16_add(x.p, v16_mul(v16_sub(g, x.p), v16_set(s.muon.one_minus_momentum)));
        return x;
}

ALWAYS_INLINE struct lanes direction_lanes(struct update_scalars s, v16 g, struct lanes x)
{
        x.p = v16_sub(v16_mul(x.p, v16_set(s.muon.decay)), v16_mul(v16_set(s.muon.lr), g));
        return x;
}

ALWAYS_INLINE struct lanes rule_lanes(enum update_rule rule, bool has_e, struct update_scalars s,
                                      v16 g, struct lanes x)
{
        switch (rule) {
#define X(rule, function, planes)              \
        case UPDATE_##rule:                    \
                x = function##_lanes(s, g, x); \
                break;
                UPDATE_RULE_MAP(X)
#undef X
        case UPDATE_RULES:
                break;
        }
        if (has_e)
                x.e = v16_add(x.e, v16_mul(v16_sub(x.p, x.e), v16_set(s.ema_rate)));
        return x;
}

/* rule and has_e are constant, so what they do not need folds away.  The scalars are passed by
 * value, so no store can change them. */
ALWAYS_INLINE void update_lanes(enum update_rule rule, bool has_e, struct update_scalars s,
                                size_t n, float *const *planes, const float *grad,
                                const struct update_undo *undo)
{
        uint32_t moments = rule_planes(rule) - 1, last = moments + has_e;
        bool has_m = moments > 0, has_v = moments > 1;
        float *p = planes[0], *m = has_m ? planes[1] : p, *v = has_v ? planes[2] : p;
        float *e = has_e ? planes[last] : p;

        for (size_t i = 0; i + 16 <= n; i += 16) {
                struct lanes old = { .p = v16_load(p + i) };
                v16 g = v16_mul(v16_load(grad + i), v16_set(s.grad_scale));

                old.m = has_m ? v16_load(m + i) : old.p;
                old.v = has_v ? v16_load(v + i) : old.p;
                old.e = has_e ? v16_load(e + i) : old.p;
                struct lanes x = rule_lanes(rule, has_e, s, g, old);

                if (undo) {
                        v16_store(undo->old[0] + i, old.p);
                        if (has_m)
                                v16_store(undo->old[1] + i, old.m);
                        if (has_v)
                                v16_store(undo->old[2] + i, old.v);
                        if (has_e)
                                v16_store(undo->old[last] + i, old.e);
                        undo_raise(undo, i + 16);
                }
                v16_store(p + i, x.p);
                fetch_ahead(p, i);
                if (has_m) {
                        v16_store(m + i, x.m);
                        fetch_ahead(m, i);
                }
                if (has_v) {
                        v16_store(v + i, x.v);
                        fetch_ahead(v, i);
                }
                if (has_e) {
                        v16_store(e + i, x.e);
                        fetch_ahead(e, i);
                }
                fetch_ahead(grad, i);
        }
}

/* The last n % 16 elements.  A chunk has none, and does not pay for them: 4 % on AVX-512. */
static __attribute__((noinline)) void update_rest(enum update_rule rule,
                                                  const struct update_scalars *s, size_t n,
                                                  float *const *planes, const float *grad,
                                                  const struct update_undo *undo)
{
        float *rest[UPDATE_PLANES] = { NULL };
        size_t i = n - n % 16;
        struct update_undo behind;

        for (uint32_t k = 0; k < update_planes(rule, s); k++)
                rest[k] = planes[k] + i;
        if (undo)
                behind = undo_behind(*undo, (uint32_t)i);
        host_scalar_ops.update(rule, s, n - i, rest, grad + i, undo ? &behind : NULL);
}

ALWAYS_INLINE void update_by(enum update_rule rule, bool has_e, const struct update_scalars *s,
                             size_t n, float *const *planes, const float *grad,
                             const struct update_undo *undo)
{
        if (undo) {
                struct update_undo copy = *undo; /* no store can change it */

                update_lanes(rule, has_e, *s, n, planes, grad, &copy);
        } else {
                update_lanes(rule, has_e, *s, n, planes, grad, NULL);
        }
        if (n % 16 > 0)
                update_rest(rule, s, n, planes, grad, undo);
}

static void vector_update(enum update_rule rule, const struct update_scalars *s, size_t n,
                          float *const *planes, const float *grad, const struct update_undo *undo)
{
        switch (rule) {
#define X(rule, function, n_planes)                                                \
        case UPDATE_##rule:                                                        \
                if (update_has_ema(s))                                             \
                        update_by(UPDATE_##rule, true, s, n, planes, grad, undo);  \
                else                                                               \
                        update_by(UPDATE_##rule, false, s, n, planes, grad, undo); \
                break;
                UPDATE_RULE_MAP(X)
#undef X
        case UPDATE_RULES:
                break;
        }
}

/* Bytes to the next line, at most n. */
static size_t to_line(const void *address, size_t n)
{
        size_t bytes = -(uintptr_t)address % LINE;

        return bytes < n ? bytes : n;
}

static void vector_copy(void *dst, const void *src, size_t n)
{
        size_t i;

        if (n < HOST_STREAM_MIN) {
                host_scalar_ops.copy(dst, src, n);
                return;
        }
        i = to_line(dst, n);
        memcpy(dst, src, i);
        for (; i + 4 * LINE <= n; i += 4 * LINE) {
                float *to = (float *)((char *)dst + i);
                const float *from = (const float *)((const char *)src + i);
                v16 a = v16_load(from), b = v16_load(from + 16);
                v16 c = v16_load(from + 32), d = v16_load(from + 48);

                v16_stream(to, a);
                v16_stream(to + 16, b);
                v16_stream(to + 32, c);
                v16_stream(to + 48, d);
        }
        memcpy((char *)dst + i, (const char *)src + i, n - i);
        _mm_sfence();
}

static void vector_zero(void *dst, size_t n)
{
        size_t i;

        if (n < HOST_STREAM_MIN) {
                host_scalar_ops.zero(dst, n);
                return;
        }
        i = to_line(dst, n);
        memset(dst, 0, i);
        for (; i + LINE <= n; i += LINE)
                v16_stream((float *)((char *)dst + i), v16_set(0.0f));
        memset((char *)dst + i, 0, n - i);
        _mm_sfence();
}

ALWAYS_INLINE size_t size_of(enum zero_dtype dtype)
{
        return dtype == ZERO_FP32 ? sizeof(float) : sizeof(uint16_t);
}

ALWAYS_INLINE const void *at(enum zero_dtype dtype, const void *base, size_t i)
{
        return (const char *)base + i * size_of(dtype);
}

ALWAYS_INLINE void *at_mutable(enum zero_dtype dtype, void *base, size_t i)
{
        return (char *)base + i * size_of(dtype);
}

/* As fetch_ahead(), for n elements of a source that a loop only reads. */
ALWAYS_INLINE void fetch_source(enum zero_dtype from, const void *src, size_t i, size_t n)
{
        const char *x = at(from, src, i);

        for (size_t k = 0; SOURCE_AHEAD > 0 && k < n * size_of(from); k += LINE)
                _mm_prefetch((const char *)((uintptr_t)x + SOURCE_AHEAD + k), _MM_HINT_T0);
}

ALWAYS_INLINE v16 load_as(enum zero_dtype from, const void *src, size_t i)
{
        switch (from) {
        case ZERO_BF16:
                return v16_from_bf16(h16_load(at(from, src, i)));
        case ZERO_FP16:
                return v16_from_fp16(h16_load(at(from, src, i)));
        default: /* ZERO_FP32: no kernel gets bytes */
                break;
        }
        return v16_load(at(from, src, i));
}

ALWAYS_INLINE h16 narrow(enum zero_dtype to, v16 x)
{
        return to == ZERO_BF16 ? v16_to_bf16(x) : v16_to_fp16(x);
}

/* Stores 32 elements. */
ALWAYS_INLINE void store_as(enum zero_dtype to, void *dst, size_t i, bool stream, v16 low, v16 high)
{
        void *place = at_mutable(to, dst, i);
        float *floats = place;
        uint16_t *halves = place;

        if (to == ZERO_FP32) {
                (stream ? v16_stream : v16_store)(floats, low);
                (stream ? v16_stream : v16_store)(floats + 16, high);
        } else if (stream) {
                h32_stream(halves, narrow(to, low), narrow(to, high));
        } else {
                h16_store(halves, narrow(to, low));
                h16_store(halves + 16, narrow(to, high));
        }
}

/* Dtypes and `stream` are constant: the switches inside fold away. */
ALWAYS_INLINE void cast_loop(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                             size_t n, bool stream)
{
        size_t i = stream ? to_line(dst, n * size_of(to)) / size_of(to) : 0;

        host_scalar_ops.cast(to, dst, from, src, i);
        for (; i + PAIR <= n; i += PAIR) {
                if (stream) /* else there is little to read */
                        fetch_source(from, src, i, PAIR);
                store_as(to, dst, i, stream, load_as(from, src, i), load_as(from, src, i + 16));
        }
        host_scalar_ops.cast(to, at_mutable(to, dst, i), from, at(from, src, i), n - i);
}

ALWAYS_INLINE void cast_pair(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                             size_t n, bool stream)
{
        if (to == ZERO_BF16)
                cast_loop(ZERO_BF16, dst, ZERO_FP32, src, n, stream);
        else if (to == ZERO_FP16)
                cast_loop(ZERO_FP16, dst, ZERO_FP32, src, n, stream);
        else if (from == ZERO_BF16)
                cast_loop(ZERO_FP32, dst, ZERO_BF16, src, n, stream);
        else if (from == ZERO_FP16)
                cast_loop(ZERO_FP32, dst, ZERO_FP16, src, n, stream);
        else
                cast_loop(ZERO_FP32, dst, ZERO_FP32, src, n, stream);
}

static void vector_cast(enum zero_dtype to, void *dst, enum zero_dtype from, const void *src,
                        size_t n)
{
        assert(to == from || to == ZERO_FP32 || from == ZERO_FP32);
        if (to == from)
                vector_copy(dst, src, n * size_of(to));
        else if (n * size_of(to) < HOST_STREAM_MIN)
                cast_pair(to, dst, from, src, n, false);
        else {
                cast_pair(to, dst, from, src, n, true);
                _mm_sfence();
        }
}

/* Has no fence, which would wait for memory in every chunk: 80 ns, where the chunk takes 250 to
 * 800. */
static void vector_serve(enum zero_dtype to, void *dst, const float *src, size_t n)
{
        cast_pair(to, dst, ZERO_FP32, src, n, true);
}

ALWAYS_INLINE void accumulate_loop(float *acc, enum zero_dtype from, const void *src, size_t n,
                                   bool first)
{
        size_t i = 0;

        for (; i + 16 <= n; i += 16) {
                v16 x = load_as(from, src, i);

                fetch_source(from, src, i, 16);
                v16_store(acc + i, first ? x : v16_add(v16_load(acc + i), x));
        }
        host_scalar_ops.accumulate(acc + i, from, at(from, src, i), n - i, first);
}

ALWAYS_INLINE void accumulate_from(float *acc, enum zero_dtype from, const void *src, size_t n,
                                   bool first)
{
        if (from == ZERO_BF16)
                accumulate_loop(acc, ZERO_BF16, src, n, first);
        else if (from == ZERO_FP16)
                accumulate_loop(acc, ZERO_FP16, src, n, first);
        else
                accumulate_loop(acc, ZERO_FP32, src, n, first);
}

static void vector_accumulate(float *acc, enum zero_dtype from, const void *src, size_t n,
                              bool first)
{
        if (first)
                accumulate_from(acc, from, src, n, true);
        else
                accumulate_from(acc, from, src, n, false);
}

ALWAYS_INLINE void sum_loop(enum zero_dtype to, void *dst, enum zero_dtype from,
                            const void *const *src, size_t k, size_t n)
{
        for (size_t i = 0; i + PAIR <= n; i += PAIR) {
                v16 low = load_as(from, src[0], i), high = load_as(from, src[0], i + 16);

                for (size_t j = 0; j < k; j++)
                        fetch_source(from, src[j], i, PAIR);
                for (size_t j = 1; j < k; j++) {
                        low = v16_add(low, load_as(from, src[j], i));
                        high = v16_add(high, load_as(from, src[j], i + 16));
                }
                store_as(to, dst, i, false, low, high);
        }
}

ALWAYS_INLINE void sum_to(enum zero_dtype to, void *dst, enum zero_dtype from,
                          const void *const *src, size_t k, size_t n)
{
        if (from == ZERO_BF16)
                sum_loop(to, dst, ZERO_BF16, src, k, n);
        else if (from == ZERO_FP16)
                sum_loop(to, dst, ZERO_FP16, src, k, n);
        else
                sum_loop(to, dst, ZERO_FP32, src, k, n);
}

/* The elements after the last full pair. */
static void sum_rest(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                     size_t k, size_t n)
{
        float rest[PAIR];
        size_t done = n - n % PAIR;

        for (size_t j = 0; j < k; j++)
                host_scalar_ops.accumulate(rest, from, at(from, src[j], done), n - done, j == 0);
        host_scalar_ops.cast(to, at_mutable(to, dst, done), ZERO_FP32, rest, n - done);
}

static void vector_sum(enum zero_dtype to, void *dst, enum zero_dtype from, const void *const *src,
                       size_t k, size_t n)
{
        assert(k >= 1);
        if (to == ZERO_BF16)
                sum_to(ZERO_BF16, dst, from, src, k, n);
        else if (to == ZERO_FP16)
                sum_to(ZERO_FP16, dst, from, src, k, n);
        else
                sum_to(ZERO_FP32, dst, from, src, k, n);
        sum_rest(to, dst, from, src, k, n);
}

static void vector_norm(const float *x, size_t n, double scale, struct exact_sum *acc, bool *finite)
{
        size_t i = 0;

        for (; i + NORM_BLOCK <= n; i += NORM_BLOCK) {
                d16 sum = d16_zero();

                for (size_t j = 0; j < NORM_BLOCK; j += 16) {
                        fetch_source(ZERO_FP32, x, i + j, 16);
                        sum = d16_add_squares(sum, x + i + j);
                }
                norm_add_block(d16_total(sum), scale, acc, finite);
        }
        host_scalar_ops.norm(x + i, n - i, scale, acc, finite);
}

static void vector_reduce(const struct reduce_piece *pieces, size_t n_pieces, enum zero_dtype wire,
                          enum zero_dtype from, double scale, struct exact_sum *norm, bool *finite)
{
        for (size_t i = 0; i < n_pieces; i++)
                host_reduce(&KERNELS_OPS, &pieces[i], wire, from, scale, norm, finite);
}

/* packed.inc.c */
static void vector_update_packed(const struct packed_update *u);
/* product.inc.c */
static void vector_product(const struct product *p, const float *from, float *to);

const struct device_ops KERNELS_OPS = {
        .name = KERNELS_NAME,
        .update = vector_update,
        .cast = vector_cast,
        .serve = vector_serve,
        .accumulate = vector_accumulate,
        .sum = vector_sum,
        .norm = vector_norm,
        .reduce = vector_reduce,
        .update_packed = vector_update_packed,
        .pack = vector_pack,
        .unpack = vector_unpack,
        .zero = vector_zero,
        .copy = vector_copy,
        .product = vector_product,
};
