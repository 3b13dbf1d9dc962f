/* Which bytes go from which GPU to which: every byte goes once, and no move overwrites another's
 * source. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/device/device.h"
#include "daemon/compute/device/gpu/moves.h"

enum { PEERS_MAX = 64, OWNERS = 3, RANKS = 7, N = 100003, BUFFER = 256 << 10 };

static bool overlap(const void *a, size_t n, const void *b, size_t m)
{
        return (const char *)a < (const char *)b + m && (const char *)b < (const char *)a + n;
}

/* Carries out a round; moves of one round may come in any order, so none depends on another. */
static void carry(const struct move *moves, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t j = 0; j < n; j++) {
                        const struct move *a = &moves[i], *b = &moves[j];

                        cr_assert(!overlap(a->dst, a->n, b->src, b->n), "%u reads what %u writes",
                                  j, i);
                        cr_assert(i == j || !overlap(a->dst, a->n, b->dst, b->n),
                                  "%u and %u write the same", i, j);
                }
        for (uint32_t i = n; i-- > 0;)
                memcpy(moves[i].dst, moves[i].src, moves[i].n);
}

/* ---- to several -------------------------------------------------------------------- */

static void spread(uint32_t n_peers)
{
        struct move moves[PEERS_MAX];
        struct peer peers[PEERS_MAX];
        uint64_t bytes[PEERS_MAX] = { 0x0123456789abcdef };
        uint32_t have = 1, rounds = 0, written = 0;

        for (uint32_t i = 0; i < n_peers; i++)
                peers[i] = (struct peer){ &bytes[i], i };
        for (; have < n_peers; rounds++) {
                uint32_t n = moves_spread(peers, n_peers, have, sizeof bytes[0], moves);
                uint64_t senders = 0;

                cr_assert(n > 0 && n <= have);
                for (uint32_t i = 0; i < n; i++) {
                        cr_assert(!(senders >> moves[i].from & 1), "a GPU sends to two at once");
                        senders |= UINT64_C(1) << moves[i].from;
                        cr_assert(moves[i].dst == &bytes[moves[i].to] &&
                                  moves[i].src == &bytes[moves[i].from]);
                }
                carry(moves, n);
                have += n;
                written += n;
        }
        for (uint32_t i = 0; i < n_peers; i++)
                cr_assert_eq(bytes[i], bytes[0], "peer %u of %u", i, n_peers);
        cr_assert_eq(written, n_peers - 1);
        cr_assert(n_peers == 1 ? rounds == 0 : 1u << (rounds - 1) < n_peers, "%u rounds for %u",
                  rounds, n_peers);
}

Test(moves, each_round_doubles_those_that_have_it)
{
        for (uint32_t n = 1; n <= PEERS_MAX; n++)
                spread(n);
}

/* ---- from several ------------------------------------------------------------------ */

struct node {
        uint16_t *pushed[RANKS];
        float *sum[OWNERS], *wanted;
        uint8_t *buffer[OWNERS];
};

/* A rank's slots are on the GPU of that owner, or of a GPU that has none, or in host memory. */
static int gpu_of_rank(uint32_t rank)
{
        return (int)(rank % (OWNERS + 2)) - 1;
}

static void node_init(struct node *node)
{
        const void *src[RANKS];

        for (uint32_t rank = 0; rank < RANKS; rank++) {
                src[rank] = node->pushed[rank] = malloc(N * sizeof *node->pushed[rank]);
                for (uint32_t i = 0; i < N; i++)
                        node->pushed[rank][i] =
                                (uint16_t)(0x3f00 + ((i * 2654435761u + rank * 40503u) >> 23));
        }
        for (uint32_t owner = 0; owner < OWNERS; owner++) {
                node->sum[owner] = calloc(N, sizeof *node->sum[owner]);
                node->buffer[owner] = malloc(BUFFER);
        }
        node->wanted = calloc(N, sizeof *node->wanted);
        device_host("scalar")->sum(ZERO_FP32, node->wanted, ZERO_BF16, src, RANKS, N);
}

static void node_deinit(struct node *node)
{
        for (uint32_t rank = 0; rank < RANKS; rank++)
                free(node->pushed[rank]);
        for (uint32_t owner = 0; owner < OWNERS; owner++) {
                free(node->sum[owner]);
                free(node->buffer[owner]);
        }
        free(node->wanted);
}

/* Finds an owner's operands as staging.c does; those in host memory stay there. */
static void operands_of(const struct node *node, uint32_t owner, struct operand *ret)
{
        ret[0] = (struct operand){ .memory = (uint8_t *)node->sum[owner],
                                   .width = sizeof(float),
                                   .out = true,
                                   .gpu = (int)owner };
        for (uint32_t rank = 0; rank < RANKS; rank++) {
                int gpu = gpu_of_rank(rank);

                ret[1 + rank] =
                        (struct operand){ .memory = (uint8_t *)node->pushed[rank],
                                          .width = sizeof(uint16_t),
                                          .in = true,
                                          .gpu = gpu,
                                          .staged = gpu < 0 || gpu == (int)owner ? STAGED_NOT
                                                                                 : STAGED_PEERS };
        }
}

static void sum_chunk(const struct operand *operands, uint8_t *buffer, size_t first, size_t n)
{
        const void *src[RANKS];

        for (uint32_t rank = 0; rank < RANKS; rank++) {
                const struct operand *o = &operands[1 + rank];

                src[rank] = o->staged ? buffer + o->at : o->memory + first * o->width;
        }
        device_host("scalar")->sum(ZERO_FP32, (float *)operands[0].memory + first, ZERO_BF16, src,
                                   RANKS, n);
}

/* Each owner has a part of the elements; a round is one chunk of each. */
Test(moves, several_owners_sum_what_lies_on_all_gpus)
{
        struct operand operands[OWNERS][1 + RANKS];
        struct move moves[OWNERS * RANKS];
        size_t chunk = 0, carried = 0, wanted = 0, part = N / OWNERS, n;
        struct node node;

        node_init(&node);
        for (uint32_t owner = 0; owner < OWNERS; owner++) {
                operands_of(&node, owner, operands[owner]);
                chunk = operands_fit(operands[owner], 1 + RANKS, STAGED_PEERS, BUFFER);
                cr_assert_leq(operands_lay_out(operands[owner], 1 + RANKS, STAGED_PEERS, chunk),
                              BUFFER);
                for (uint32_t i = 0; i <= RANKS; i++)
                        if (operands[owner][i].staged) {
                                cr_assert_eq(operands[owner][i].at % 64, 0);
                                cr_assert_leq(operands[owner][i].at + chunk * sizeof(uint16_t),
                                              BUFFER);
                                wanted += (part + (owner == OWNERS - 1 ? N % OWNERS : 0)) *
                                          sizeof(uint16_t);
                        }
        }
        cr_assert(chunk > 0 && chunk < part, "%zu elements: it takes several rounds", chunk);
        for (size_t at = 0; at < part + N % OWNERS; at += chunk) {
                uint32_t n_moves = 0;

                for (uint32_t owner = 0; owner < OWNERS; owner++) {
                        size_t end = part + (owner == OWNERS - 1 ? N % OWNERS : 0);

                        n = end - at < chunk ? end - at : chunk;
                        if (at < end)
                                n_moves += operands_moves(operands[owner], 1 + RANKS,
                                                          node.buffer[owner], owner,
                                                          owner * part + at, n, moves + n_moves);
                }
                for (uint32_t i = 0; i < n_moves; i++) {
                        cr_assert_neq(moves[i].to, moves[i].from);
                        carried += moves[i].n;
                }
                carry(moves, n_moves);
                for (uint32_t owner = 0; owner < OWNERS; owner++) {
                        size_t end = part + (owner == OWNERS - 1 ? N % OWNERS : 0);

                        n = end - at < chunk ? end - at : chunk;
                        if (at < end)
                                sum_chunk(operands[owner], node.buffer[owner], owner * part + at,
                                          n);
                }
        }
        cr_assert_eq(carried, wanted, "%zu bytes were carried, not %zu", carried, wanted);
        for (uint32_t i = 0; i < N; i++) {
                uint32_t owner = i / (uint32_t)part < OWNERS ? i / (uint32_t)part : OWNERS - 1;

                cr_assert_eq(memcmp(&node.sum[owner][i], &node.wanted[i], sizeof(float)), 0,
                             "element %u", i);
        }
        node_deinit(&node);
}

Test(moves, no_operand_elsewhere_needs_no_chunks)
{
        struct operand o = { .width = 4, .in = true };

        cr_assert_eq(operands_fit(&o, 1, STAGED_PEERS, BUFFER), SIZE_MAX);
}
