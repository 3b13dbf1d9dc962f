/*
 * An update of planes in formats: a block of 64 elements at a time is unpacked, changed and packed
 * in registers.  Included by avx2.c and avx512.c behind kernels.inc.c.
 *
 * The lines that the loop fetches ahead come while it computes.  In a loop for each of the three,
 * with L1 between them, lines were fetched in bursts, and an update took a fifth longer.
 */
enum { FETCH_AHEAD = 512 }; /* elements: the next chunk, whose bytes an undo slot saves first */

/* Lines of the block that is FETCH_AHEAD further; `bytes` is constant. */
ALWAYS_INLINE void fetch_block(const void *plane, size_t bytes, size_t i)
{
        uintptr_t at = (uintptr_t)plane + (i + FETCH_AHEAD) / CODE_BLOCK * bytes;

        for (size_t k = 0; k + LINE <= bytes; k += LINE)
                _mm_prefetch((const char *)(at + k), _MM_HINT_T0);
}

ALWAYS_INLINE void fetch_plane(enum format format, const void *plane, const uint16_t *served,
                               size_t i)
{
        switch (format) {
#define X(format, name, bytes, kinds)                                        \
        case FORMAT_##format:                                                \
                fetch_block(plane, (bytes)*CODE_BLOCK / FORMAT_STEP, i);     \
                if ((kinds) == FORMAT_MASTER)                                \
                        fetch_block(served, CODE_BLOCK * sizeof *served, i); \
                break;
                FORMAT_MAP(X)
#undef X
        case FORMATS:
                break;
        }
}

ALWAYS_INLINE struct lanes packed_lanes(enum update_rule rule, const struct packed_update *u,
                                        struct update_scalars s, size_t i, struct lanes x)
{
        v16 g = v16_mul(v16_load(u->grad + i), v16_set(s.grad_scale));

        return rule_lanes(rule, false, s, g, x);
}

/* rule and formats are constant; what they do not need folds away. */
ALWAYS_INLINE void packed_blocks(enum update_rule rule, enum format master, enum format first,
                                 enum format second, struct update_scalars s,
                                 struct packed_update u)
{
        bool has_m = rule_planes(rule) > 1, has_v = rule_planes(rule) > 2;
        w16 p_dither = first_dither(dither_at(0, u.step, u.element));
        w16 m_dither = first_dither(dither_at(1, u.step, u.element));
        w16 v_dither = first_dither(dither_at(2, u.step, u.element));

        if (has_v && first != FORMAT_FP32)
                s.adam.sqrt_bias2 = 1; /* as it is: vector_update_packed() */
        for (size_t i = 0; i < u.n; i += CODE_BLOCK) {
                fetch_plane(master, u.planes[0], u.served, i);
                if (has_m)
                        fetch_plane(first, u.planes[1], NULL, i);
                if (has_v)
                        fetch_plane(second, u.planes[2], NULL, i);
                fetch_block(u.grad, CODE_BLOCK * sizeof(float), i);

                struct b64 p = block_load(master, u.planes[0], u.served, i);
                struct b64 m = has_m ? block_load(first, u.planes[1], NULL, i) : p;
                struct b64 v = has_v ? block_load(second, u.planes[2], NULL, i) : p;
                struct lanes a = packed_lanes(rule, &u, s, i, (struct lanes){ p.a, m.a, v.a });
                struct lanes b = packed_lanes(rule, &u, s, i + 16, (struct lanes){ p.b, m.b, v.b });
                struct lanes c = packed_lanes(rule, &u, s, i + 32, (struct lanes){ p.c, m.c, v.c });
                struct lanes d = packed_lanes(rule, &u, s, i + 48, (struct lanes){ p.d, m.d, v.d });

                if (has_m)
                        block_store(first, u.planes[1], NULL, i, (struct b64){ a.m, b.m, c.m, d.m },
                                    block_dither(&m_dither));
                if (has_v)
                        block_store(second, u.planes[2], NULL, i,
                                    (struct b64){ a.v, b.v, c.v, d.v }, block_dither(&v_dither));
                block_store(master, u.planes[0], u.served, i, (struct b64){ a.p, b.p, c.p, d.p },
                            block_dither(&p_dither));
        }
}

ALWAYS_INLINE void packed_moments(enum update_rule rule, enum format master,
                                  const struct packed_update *u)
{
        switch (rule_planes(rule) > 1 ? u->formats[1] : FORMAT_FP32) {
        case FORMAT_BF16:
                packed_blocks(rule, master, FORMAT_BF16, FORMAT_BF16, *u->scalars, *u);
                break;
        case FORMAT_8BIT:
                packed_blocks(rule, master, FORMAT_8BIT, FORMAT_8BIT_SQUARE, *u->scalars, *u);
                break;
        default: /* FORMAT_FP32 */
                packed_blocks(rule, master, FORMAT_FP32, FORMAT_FP32, *u->scalars, *u);
        }
}

#define X(rule, function, planes)                                         \
        static void function##_packed(const struct packed_update *u)      \
        {                                                                 \
                if (u->formats[0] == FORMAT_BF16_16)                      \
                        packed_moments(UPDATE_##rule, FORMAT_BF16_16, u); \
                else if (u->formats[0] == FORMAT_BF16_8)                  \
                        packed_moments(UPDATE_##rule, FORMAT_BF16_8, u);  \
                else                                                      \
                        packed_moments(UPDATE_##rule, FORMAT_FP32, u);    \
        }
UPDATE_RULE_MAP(X)
#undef X

/* No state has such moments (rules.h). */
static bool is_biased(const struct packed_update *u)
{
        return rule_planes(u->rule) > 2 && u->formats[1] != FORMAT_FP32 &&
               u->scalars->adam.sqrt_bias2 != 1;
}

static void vector_update_packed(const struct packed_update *u)
{
        struct packed_update whole = *u, rest = packed_behind(u, u->n - u->n % FORMAT_STEP);

        if (update_has_ema(u->scalars) || is_biased(u)) {
                host_update_packed(&KERNELS_OPS, u);
                return;
        }
        whole.n -= rest.n;
        switch (u->rule) {
#define X(rule, function, planes)          \
        case UPDATE_##rule:                \
                function##_packed(&whole); \
                break;
                UPDATE_RULE_MAP(X)
#undef X
        case UPDATE_RULES:
                break;
        }
        host_update_packed(&host_scalar_ops, &rest);
}
