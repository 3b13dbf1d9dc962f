/*
 * Layout messages.  Input: the length of a first message (16 bits, little-endian), that
 * message, and a second one.
 *
 * What must hold: a message is refused with a sentence that can be shown, or gives a layout that
 * survives the way through a message, whose groups are covered exactly once by any
 * number of owners, whose matrices are not cut, and whose slots lie apart.  Two layouts are equal
 * exactly if their hashes are.
 */
#include <assert.h>
#include <string.h>

#include "proto/layout.h"
#include "proto/partition.h"
#include "proto/slots.h"
#include "proto/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static layout *read_layout(const uint8_t *data, size_t size)
{
        Zero__Layout *m = zero__layout__unpack(NULL, size, data);
        struct fault fault = { 0 };
        layout *l = NULL;
        if (!m)
                return NULL;

        int r = layout_from_message(m, &l, &fault);
        assert((r == 0) == (l != NULL));
        if (r != 0) {
                assert(r == fault.status && r > 0);
                assert(fault.text[0] && text_printable(fault.text));
        }
        zero__layout__free_unpacked(m, NULL);
        return l;
}

static void check_same(const layout *a, const layout *b)
{
        uint8_t x[LAYOUT_HASH], y[LAYOUT_HASH];
        char text[512] = "";

        layout_hash(a, x);
        layout_hash(b, y);
        bool equal = layout_equal(a, b, text, sizeof(text));
        assert(equal == (memcmp(x, y, LAYOUT_HASH) == 0));
        assert(equal == (text[0] == '\0') && text_printable(text));
}

static void check_round_trip(const layout *l)
{
        Zero__Layout *m;
        layout *again, *copy;
        int r = layout_to_message(l, &m);
        assert(r == 0);
        r = layout_from_message(m, &again, NULL);
        assert(r == 0 && layout_equal(l, again, NULL, 0));
        r = layout_copy(l, &copy);
        assert(r == 0 && layout_equal(l, copy, NULL, 0));
        zero__layout__free_unpacked(m, NULL);
        layout_free(again);
        layout_free(copy);
}

/* A cut in a tensor with matrices is at the first row of one of them. */
static void check_cut(const struct layout_tensor *t, uint64_t cut)
{
        if (!layout_matrices(t) || cut <= t->offset || cut >= t->offset + t->elements)
                return;
        uint64_t cols = t->shape[t->ndim - 1], at = (cut - t->offset) / cols;
        uint64_t row = at % t->shape[t->ndim - 2];

        assert(!t->whole && (cut - t->offset) % cols == 0);
        for (uint32_t i = 0; row > 0; row -= t->rows[i++])
                assert(row >= t->rows[i]);
}

static void check_partition(const layout *l, uint32_t n_owners)
{
        struct partition *p;
        uint64_t total = 0;
        int r = partition_new(l, n_owners, &p);
        assert(r == 0);

        for (uint32_t g = 0; g < l->n_groups; g++) {
                uint64_t at = 0;
                for (uint32_t i = 0; i < p->slices[g]; i++) {
                        struct range range = partition_range(p, g, partition_owner(p, g, i));
                        assert(range.first == at && range.count > 0);
                        for (uint32_t t = 0; t < l->groups[g].n_tensors; t++)
                                check_cut(&l->tensors[l->groups[g].first_tensor + t], at);
                        at += range.count;
                }
                assert(at == l->groups[g].elements);
        }
        for (uint32_t o = 0; o < n_owners; o++)
                total += partition_elements(p, o);
        assert(total == l->elements);
        partition_free(p);
}

static void check_slots(const layout *l, uint32_t wanted)
{
        struct slots *s;
        int r = slots_new(l, wanted, 0, NULL, &s);
        assert(r == 0 && s->bytes % SLOTS_ALIGN == 0);

        for (uint32_t i = 0; i < s->n; i++) {
                assert(slots_offset(s, i) <= s->bytes);
                assert(i == 0 || slots_offset(s, i) >= slots_offset(s, i - 1));
        }
        slots_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (size < 2)
                return 0;

        size_t first = data[0] + ((size_t)data[1] << 8);
        if (first > size - 2)
                first = size - 2;
        layout *a = read_layout(data + 2, first);
        layout *b = read_layout(data + 2 + first, size - 2 - first);
        if (a) {
                check_round_trip(a);
                check_partition(a, 1 + data[2] % ZERO_NODE_MAX);
                check_slots(a, 1);
                check_slots(a, UINT32_MAX);
        }
        if (a && b)
                check_same(a, b);
        layout_free(a);
        layout_free(b);
        return 0;
}
