/* zeroctl checkpoints: the checkpoints in a directory, and whether their bytes are whole. */
#include <stdlib.h>
#include <string.h>

#include "operation.h"
#include "progress.h"
#include "table.h"
#include "units.h"

static bool verify;

/* ---- verify ---- */

static int next_piece(struct ctl *ctl, json_t *question, json_t **ret_answer)
{
        char *text = json_dumps(question, JSON_COMPACT);
        int r = text ? ctl_query(ctl, "verify", text, ret_answer) : ZERO_ENOMEM;

        free(text);
        return r;
}

/* Piece by piece; ZERO_EIO: zero_error() names the flaw. */
static int verify_bytes(struct ctl *ctl, json_t *question, double all)
{
        struct progress progress;
        bool over = false;
        double done = 0;
        int r = ZERO_OK;

        progress_init(&progress, ctl->json);
        while (r == ZERO_OK && !over) {
                json_t *answer = NULL;

                r = next_piece(ctl, question, &answer);
                over = field_true(answer, "over");
                done += field_number(answer, "bytes");
                progress_show(&progress, "verifying", done, all);
                json_object_set(question, "shard", json_object_get(answer, "shard"));
                json_object_set(question, "block", json_object_get(answer, "block"));
                json_decref(answer);
        }
        progress_end(&progress);
        return r;
}

static int verify_one(struct ctl *ctl, const json_t *question, json_t *checkpoint)
{
        const char *name = field_text(checkpoint, "name");
        json_t *of_one = json_copy((json_t *)question);
        int r;

        if (*name)
                json_object_set_new(of_one, "directory",
                                    json_sprintf("%s/%s", field_text(question, "directory"), name));
        r = verify_bytes(ctl, of_one, field_number(checkpoint, "bytes"));
        json_decref(of_one);
        json_object_set_new(checkpoint, "verified", json_boolean(r == ZERO_OK));
        if (r == ZERO_EIO)
                json_object_set_new(checkpoint, "flaw", json_string(zero_error(ctl->client)));
        if (r == ZERO_OK || r == ZERO_EIO)
                return CTL_OK;
        ctl_error("%s: %s (%s)", name, zero_error(ctl->client), zero_status_name(r));
        return CTL_FAILED;
}

/* ---- show ---- */

static void add_checkpoint(struct table *t, const json_t *checkpoint)
{
        const char *flaw = field_text(checkpoint, "flaw"), *job = field_text(checkpoint, "job");
        bool verified = field_true(checkpoint, "verified");

        table_add(t, PAINT_NONE, "%s", *job ? job : field_text(checkpoint, "name"));
        table_add(t, PAINT_NONE, "%.0f", field_number(checkpoint, "version"));
        table_add(t, PAINT_NONE, "%s", unit_seconds(field_number(checkpoint, "age_s")).text);
        table_add(t, PAINT_NONE, "%s", unit_bytes(field_number(checkpoint, "bytes")).text);
        table_add(t, PAINT_NONE, "%.0f/%.0f", field_number(checkpoint, "shards_here"),
                  field_number(checkpoint, "shards"));
        table_add(t,
                  *flaw      ? PAINT_BAD
                  : verified ? PAINT_GOOD
                             : PAINT_NONE,
                  "%s",
                  *flaw      ? flaw
                  : verified ? "verified"
                             : "not verified");
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *list = json_object_get(answer, "checkpoints");
        json_t *checkpoint;
        struct table t;
        size_t i;

        if (json_array_size(list) == 0) {
                fprintf(out, "no checkpoint that you may restore is in %s\n",
                        field_text(answer, "directory"));
                return;
        }
        table_init(&t, "JOB|>VERSION|>AGE|>SIZE|>SHARDS|STATE");
        json_array_foreach(list, i, checkpoint) add_checkpoint(&t, checkpoint);
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
        if (field_number(answer, "left_out") > 0)
                fprintf(out, "%.0f older ones are left out\n", field_number(answer, "left_out"));
}

static int run(struct ctl *ctl)
{
        json_t *question, *answer = NULL, *checkpoint;
        bool flawed = false;
        char *text;
        size_t i;
        int r = operation_place(ctl->argument, &question);

        if (r != CTL_OK)
                return r;
        text = json_dumps(question, JSON_COMPACT);
        r = text ? ctl_ask_about(ctl, "checkpoints", text, &answer) : CTL_FAILED;
        free(text);
        json_array_foreach(json_object_get(answer, "checkpoints"), i, checkpoint)
        {
                if (r == CTL_OK && verify && !*field_text(checkpoint, "flaw"))
                        r = verify_one(ctl, question, checkpoint);
                flawed |= *field_text(checkpoint, "flaw") != '\0';
        }
        json_decref(question);
        if (r == CTL_OK)
                r = ctl_show(ctl, answer, show);
        else
                json_decref(answer);
        return r == CTL_OK && flawed ? CTL_FAILED : r;
}

static const struct command_option options[] = {
        { "verify", NULL, "read all bytes, and compare them with their hashes", .flag = &verify },
        { 0 },
};

const struct command command_checkpoints = {
        .name = "checkpoints",
        .arguments = "DIR",
        .summary = "checkpoints in DIR: job, version, age, size; --verify",
        .description =
                "Lists the checkpoints in <DIR> that you may restore, the newest first, as the "
                "node that is asked sees them; <DIR> may be one of them. SHARDS are the files that "
                "are there, and those that a restore needs: if the nodes wrote to disks of their "
                "own, each has its own. With *--verify* the node reads every byte, as a restore "
                "does, and changes nothing. Exits with 1 if a checkpoint has a flaw.",
        .options = options,
        .run = run,
};
