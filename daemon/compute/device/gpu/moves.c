/* Plans which bytes go from which GPU to which. */
#include "daemon/compute/device/gpu/moves.h"

enum { ALIGN = 64, CHUNK_UNIT = 128 }; /* bytes; elements */

uint32_t moves_spread(const struct peer *peers, uint32_t n_peers, uint32_t have, size_t n,
                      struct move *ret)
{
        uint32_t left = n_peers - have, moves = left < have ? left : have;

        for (uint32_t i = 0; i < moves; i++) {
                const struct peer *from = &peers[i], *to = &peers[have + i];

                ret[i] = (struct move){ to->memory, from->memory, n, to->gpu, from->gpu };
        }
        return moves;
}

size_t operands_fit(const struct operand *operands, uint32_t n, enum staged_in in, size_t bytes)
{
        size_t width = 0, staged = 0;

        for (uint32_t i = 0; i < n; i++)
                if (operands[i].staged == in) {
                        width += operands[i].width;
                        staged++;
                }
        return staged ? (bytes - staged * ALIGN) / width / CHUNK_UNIT * CHUNK_UNIT : SIZE_MAX;
}

size_t operands_lay_out(struct operand *operands, uint32_t n, enum staged_in in, size_t chunk)
{
        size_t at = 0;

        for (uint32_t i = 0; i < n; i++) {
                struct operand *o = &operands[i];

                if (o->staged != in)
                        continue;
                o->at = at;
                at += (chunk * o->width + ALIGN - 1) / ALIGN * ALIGN;
        }
        return at;
}

uint32_t operands_moves(const struct operand *operands, uint32_t n, uint8_t *buffer, uint32_t gpu,
                        size_t first, size_t elements, struct move *ret)
{
        uint32_t moves = 0;

        for (uint32_t i = 0; i < n; i++) {
                const struct operand *o = &operands[i];

                if (o->staged == STAGED_PEERS && o->in)
                        ret[moves++] = (struct move){ buffer + o->at, o->memory + first * o->width,
                                                      elements * o->width, gpu, (uint32_t)o->gpu };
        }
        return moves;
}
