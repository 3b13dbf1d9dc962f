/* A small model with everything a layout can have. */
#include "zoo.h"

#include "check.h"

static void group(layout *l, const char *name, enum zero_dtype dtype, const uint32_t *ranks,
                  uint32_t n_ranks)
{
        struct fault fault;
        uint32_t index;
        int r = layout_add_group(l, name, dtype, ranks, n_ranks, 0, &index, &fault);

        CHECK(r == 0, "%s", fault.text);
}

static void tensor(layout *l, const char *name, uint64_t elements, bool frozen, uint32_t set)
{
        struct layout_tensor t = { .name = (char *)name,
                                   .group = l->n_groups - 1,
                                   .ndim = 1,
                                   .shape = { elements },
                                   .frozen = frozen,
                                   .set = set,
                                   .init = set ? ZERO_INIT_CONSTANT : ZERO_INIT_NORMAL,
                                   .init_value = 0.5,
                                   .init_seed = l->n_tensors + 1 };
        struct fault fault;
        uint32_t index;
        int r = layout_add_tensor(l, &t, &index, &fault);

        CHECK(r == 0, "%s", fault.text);
}

layout *zoo_layout(uint32_t world_size, uint64_t part)
{
        uint32_t even[64], n_even = 0, last = world_size - 1;
        struct fault fault;
        layout *l;

        CHECK(layout_new(&l) == 0 && world_size <= 64);
        for (uint32_t r = 0; r < world_size; r += 2)
                even[n_even++] = r;
        group(l, "big", ZERO_BF16, NULL, 0);
        tensor(l, "big.weight", 150001 / part, false, 0);
        tensor(l, "big.frozen", 3000 / part, true, 0);
        tensor(l, "big.bias", 1, false, 1);
        tensor(l, "big.norm", 20000 / part, false, 1);
        group(l, "float", ZERO_FP32, NULL, 0);
        tensor(l, "float.none", 0, false, 0);
        tensor(l, "float.one", 1, false, 0);
        tensor(l, "float.weight", 50003 / part, false, 0);
        group(l, "empty", ZERO_BF16, NULL, 0);
        tensor(l, "empty.none", 0, false, 0);
        group(l, "tiny", ZERO_FP32, NULL, 0);
        tensor(l, "tiny.a", 3, false, 0);
        tensor(l, "tiny.b", 1, false, 1);
        group(l, "frozen", ZERO_FP32, NULL, 0);
        tensor(l, "frozen.weight", 30000 / part, true, 0);
        group(l, "even", ZERO_BF16, even, n_even);
        tensor(l, "even.weight", 70000 / part, false, 0);
        group(l, "last", ZERO_FP32, &last, 1);
        tensor(l, "last.weight", 20000 / part, false, 0);
        group(l, "whole", ZERO_BF16, NULL, 0);
        tensor(l, "whole.small", 40000, false, 0); /* two owners have a part of this group anyhow */
        tensor(l, "whole.large", 130000, false, 1);
        for (uint32_t t = l->n_tensors - 2; t < l->n_tensors; t++)
                CHECK(layout_set_whole(l, t, NULL) == 0);
        CHECK(layout_check(l, &fault) == 0, "%s", fault.text);
        return l;
}
