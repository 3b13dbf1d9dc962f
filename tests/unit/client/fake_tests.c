/* fake.h, for tests: a model, and clients of it. */
#include "fake.h"

static void add_group(struct zero_layout *l, const char *name, enum zero_dtype dtype, bool others)
{
        static const uint32_t rank_one[] = { 1 };
        uint32_t group;

        MUST(zero_layout_group(l, name, dtype, others ? rank_one : NULL, others, 0, &group) == 0);
}

static void add_tensor(struct zero_layout *l, uint32_t group, const char *name, uint64_t n,
                       bool frozen)
{
        struct zero_tensor t = { .name = name, .ndim = 1, .shape = &n, .frozen = frozen };
        uint32_t tensor;

        MUST(zero_layout_tensor(l, group, &t, &tensor) == 0);
}

struct zero_layout *fake_layout(void)
{
        struct zero_layout *l;

        MUST(zero_layout_new(&l) == 0);
        add_group(l, "embed", ZERO_BF16, false);
        add_tensor(l, FAKE_BF16, "wte", 300, false);
        add_tensor(l, FAKE_BF16, "mask", 10, true);
        add_group(l, "h.0", ZERO_FP32, false);
        add_tensor(l, FAKE_FP32, "h.0.w", 3000, false);
        add_group(l, "fixed", ZERO_FP32, false);
        add_tensor(l, FAKE_FROZEN, "fixed.w", 5, true);
        add_group(l, "expert", ZERO_FP32, true);
        add_tensor(l, FAKE_OTHERS, "expert.w", 5, false);
        return l;
}

struct zero_options fake_options(const struct fake *f)
{
        return (struct zero_options){
                .socket = f->path,
                .job = "job",
                .rank = 0,
                .world_size = 2,
                .timeout_ms = 5000,
        };
}

struct zero_client *fake_connect(const struct fake *f)
{
        struct zero_options options = fake_options(f);
        struct zero_client *c = NULL;

        MUST(zero_connect(&options, &c) == 0);
        return c;
}

struct zero_needs fake_needs(uint32_t push_groups)
{
        return (struct zero_needs){
                .hold_groups = 2,
                .push_groups = push_groups,
                .grad_dtype = ZERO_FP32,
                .reduce_dtype = ZERO_FP32,
        };
}

static struct zero_client *attach(struct zero_client *c, const struct zero_needs *needs)
{
        struct zero_layout *l = fake_layout();

        MUST(zero_attach(c, l, needs) == 0);
        zero_layout_free(l);
        return c;
}

struct zero_client *fake_client(const struct fake *f, uint32_t push_groups)
{
        struct zero_needs needs = fake_needs(push_groups);

        return attach(fake_connect(f), &needs);
}

struct zero_client *fake_open_private(struct fake *f, void (*script)(struct fake *fake))
{
        struct zero_needs needs = fake_needs(1);

        fake_start(f, script);
        needs.private_views = true;
        return attach(fake_connect(f), &needs);
}

struct zero_client *fake_open_gpu(struct fake *f, void (*script)(struct fake *fake),
                                  uint32_t timeout_ms)
{
        struct zero_needs needs = fake_needs(2);
        struct zero_options options;
        struct zero_client *c = NULL;

        fake_start(f, script);
        options = fake_options(f);
        options.timeout_ms = timeout_ms;
        needs.device = "cuda:0";
        MUST(zero_connect(&options, &c) == 0);
        return attach(c, &needs);
}

struct zero_client *fake_open(struct fake *f, void (*script)(struct fake *fake),
                              uint32_t push_groups)
{
        fake_start(f, script);
        return fake_client(f, push_groups);
}

void fake_close(struct fake *f, struct zero_client *c)
{
        zero_close(c);
        fake_stop(f);
}
