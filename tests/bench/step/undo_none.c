/*
 * Updates in place, with nothing that makes them crash-consistent: takes the place of
 * daemon/store/undo_slot.c in the zerod that bench-step measures the other one against, and in no
 * other program.
 *
 * What is left of it costs a word a chunk: versions, by which the record is finished.  A process
 * that is killed in an update leaves a state that nobody can use.  Every tensor has to have a
 * gradient, and no checkpoint may be taken.
 */
#include "daemon/store/store.h"

#include <stdlib.h>

#include "daemon/store/file.h"
#include "tests/support/adamw.h"

void undo_init(struct state *state)
{
}

struct undo_values undo_update(struct state *state, uint32_t slot, uint32_t chunk,
                               const struct unit_update *update, const struct device_ops *ops)
{
        const struct plan_chunk c = plan_chunk(state->plan, chunk);
        const struct plan_segment *segment = &state->plan->segments[c.first_segment];
        uint8_t *planes[UPDATE_PLANES] = { NULL };

        chunk_planes(state, &c, planes);
        for (uint32_t done = 0, n; done < c.n; done += n, segment++) {
                uint64_t left = segment->in_group + segment->count - (c.in_group + done);

                n = left < c.n - done ? (uint32_t)left : c.n - done;
                run_adamw(ops, &update->scalars[segment->tensor], n, (float *)planes[0] + done,
                          (float *)planes[1] + done, (float *)planes[2] + done,
                          (float *)state->in->grad + c.moment + done, NULL);
        }
        tables_set_chunk_version(state, chunk, update->version);
        return (struct undo_values){ 0 };
}

struct undo_values undo_values(const struct state *state, uint32_t slot, uint32_t chunk)
{
        return (struct undo_values){ 0 };
}

uint32_t undo_all(struct state *state)
{
        return 0;
}

int undo_check(const struct state *state, struct fault *fault)
{
        return 0;
}

void undo_back(struct state *state, uint32_t slot, uint32_t unit, uint64_t version)
{
        abort(); /* no group is eager */
}
