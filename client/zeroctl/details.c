/* One job's ranks, windows and memory, from status. */
#include "ctl.h"

#include <string.h>

#include "table.h"
#include "units.h"

static void show_ranks(const struct ctl *ctl, FILE *out, const json_t *job)
{
        json_t *rank;
        size_t i;

        fputs("  ranks   ", out);
        json_array_foreach(json_object_get(job, "ranks"), i, rank)
        {
                enum paint paint = field_true(rank, "attached") ? PAINT_NONE : PAINT_WARN;
                const char *node = field_text(rank, "node");

                fprintf(out, " %s%.0f@%s%s%s", paint_begin(paint, ctl->colour),
                        field_number(rank, "rank"), node[0] ? node : "?",
                        paint == PAINT_NONE ? "" : "(absent)", paint_end(paint, ctl->colour));
        }
        fputc('\n', out);
}

static void show_owners(FILE *out, const json_t *job)
{
        json_t *owner;
        size_t i;

        fputs("  owners  ", out);
        json_array_foreach(json_object_get(job, "owners"), i, owner)
                fprintf(out, " %s", json_is_string(owner) ? json_string_value(owner) : "?");
        fputc('\n', out);
}

static void show_sessions(FILE *out, const json_t *job)
{
        json_t *session;
        size_t i;

        json_array_foreach(json_object_get(job, "sessions"), i, session) fprintf(
                out,
                "  session  rank %.0f, process %.0f, holds %.0f groups, push window "
                "%s%s%s\n",
                field_number(session, "rank"), field_number(session, "pid"),
                field_number(session, "held"),
                unit_bytes(field_number(session, "push_window")).text,
                json_is_true(json_object_get(session, "no_events")) ? ", waits for its GPU itself"
                                                                    : "",
                json_is_true(json_object_get(session, "stash_unpinned"))
                        ? ", its stash is not pinned"
                        : "");
}

static void show_traffic(FILE *out, const json_t *job)
{
        const json_t *gather = json_object_get(job, "gather");
        double hits = field_number(gather, "hits"), misses = field_number(gather, "misses");
        const char *place = field_text(gather, "place");
        bool host = *place == '\0' || strcmp(place, "host") == 0;

        fprintf(out, "  gather   window %s%s%s in %.0f slots, %s hits and %s misses",
                unit_bytes(field_number(gather, "window_bytes")).text, host ? "" : " on ",
                host ? "" : place, field_number(gather, "slots"), unit_count(hits).text,
                unit_count(misses).text);
        if (hits + misses > 0)
                fprintf(out, " (%.1f %%)", 100 * hits / (hits + misses));
        fprintf(out, ", %s groups gathered, %s elements received\n",
                unit_count(field_number(gather, "gathers")).text,
                unit_count(field_number(gather, "elements_received")).text);
        fprintf(out, "  reduce   %s elements sent\n",
                unit_count(field_number(json_object_get(job, "reduce"), "elements_sent")).text);
}

static void show_readers(FILE *out, const json_t *job)
{
        const json_t *readers = json_object_get(job, "readers");
        const json_t *version = json_object_get(readers, "version");
        double deltas = field_number(readers, "delta_bytes");

        if (!json_is_object(readers))
                return;
        fprintf(out, "  readers  %.0f, %.0f versions in %s, %.0f held",
                field_number(readers, "clients"), field_number(readers, "copies"),
                unit_bytes(field_number(readers, "bytes")).text, field_number(readers, "held"));
        if (json_is_number(version))
                fprintf(out, ", the newest is %.0f", json_number_value(version));
        if (deltas > 0)
                fprintf(out, "; deltas in %s", unit_bytes(deltas).text);
        fputc('\n', out);
}

static void show_stash(FILE *out, const json_t *job)
{
        const json_t *stash = json_object_get(job, "stash");
        const char *place;

        if (!json_is_object(stash))
                return;
        place = field_text(stash, "place");
        fprintf(out, "  stash    %s of %s%s%s in use, at most %s so far, %s received\n",
                unit_bytes(field_number(stash, "used")).text,
                unit_bytes(field_number(stash, "reserved")).text,
                strcmp(place, "host") == 0 ? "" : " on ", strcmp(place, "host") == 0 ? "" : place,
                unit_bytes(field_number(stash, "peak")).text,
                unit_bytes(field_number(stash, "received")).text);
}

static void show_planes(FILE *out, const json_t *job)
{
        json_t *planes = json_object_get(job, "planes"), *plane;
        const json_t *formula = json_object_get(job, "zero_formula");
        const char *name;
        double total = 0;

        fputs("  memory  ", out);
        json_object_foreach(planes, name, plane)
        {
                total += json_number_value(plane);
                fprintf(out, " %s %s,", name, unit_bytes(json_number_value(plane)).text);
        }
        fprintf(out, " together %s", unit_bytes(total).text);
        if (field_number(job, "planes_on_gpu") > 0)
                fprintf(out, " (%s on GPUs)", unit_bytes(field_number(job, "planes_on_gpu")).text);
        fprintf(out, "; ZeRO stage 3 by its formula (%.0f bytes a parameter): %s\n",
                field_number(formula, "bytes_per_parameter"),
                unit_bytes(field_number(formula, "stage3_bytes")).text);
}

/* Where they are not all in fp32. */
static void show_formats(FILE *out, const json_t *job)
{
        const json_t *formats = json_object_get(job, "formats"), *text;
        size_t i;

        if (json_array_size(formats) == 0)
                return;
        fputs("  formats  of moments and master weights:", out);
        json_array_foreach(formats, i, text)
                fprintf(out, "%s %s", i ? ";" : "", json_string_value(text));
        fputc('\n', out);
}

static void show_move(FILE *out, const json_t *job)
{
        const json_t *move = json_object_get(job, "move");
        double from = field_number(move, "from_epoch"), to = field_number(move, "to_epoch");

        if (!json_is_object(move))
                return;
        if (from == to)
                fputs("  moving   back to nodes that lost them", out);
        else
                fprintf(out, "  moving   from the owners of epoch %.0f to those of epoch %.0f",
                        from, to);
        if (field_number(move, "total") > 0)
                fprintf(out, ": %s of %s", unit_bytes(field_number(move, "bytes")).text,
                        unit_bytes(field_number(move, "total")).text);
        fputc('\n', out);
}

void show_job_details(const struct ctl *ctl, FILE *out, const json_t *job)
{
        fprintf(out, "\n%sjob %s%s at version %.0f, attempt %.0f, loss scale %s\n",
                paint_begin(PAINT_HEAD, ctl->colour), field_text(job, "job"),
                paint_end(PAINT_HEAD, ctl->colour), field_number(job, "version"),
                field_number(job, "attempt"), unit_number(field_number(job, "loss_scale")).text);
        fprintf(out, "  owned    by user %.0f, coordinated by %s, %.0f groups\n",
                field_number(job, "uid"), field_text(job, "coordinator"),
                field_number(job, "groups"));
        show_ranks(ctl, out, job);
        show_owners(out, job);
        show_move(out, job);
        show_sessions(out, job);
        show_traffic(out, job);
        show_readers(out, job);
        show_stash(out, job);
        show_planes(out, job);
        show_formats(out, job);
}

void show_memory(FILE *out, const json_t *memory)
{
        double quota = field_number(memory, "state_quota");

        fprintf(out, "memory: state %s", unit_bytes(field_number(memory, "state_used")).text);
        if (quota > 0)
                fprintf(out, " of %s", unit_bytes(quota).text);
        fprintf(out, ", resident %s\n", unit_bytes(field_number(memory, "resident")).text);
}
