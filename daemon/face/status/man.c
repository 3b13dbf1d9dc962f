/*
 * man.c - run by the build: prints zeroctl-json(5), the fields of all answers, from fields.h.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/face/status/fields.h"

struct row {
        const char *kind, *type, *name, *doc;
        enum record_metric metric;
        const char *metric_name;
};

struct record {
        const char *type;
        const struct row *rows;
        size_t n_rows;
        bool named; /* in a record that was printed */
};

/* clang-format off */
#define ROW(kind, name, ...) { #kind, NULL, #name, __VA_ARGS__ },
#define ROW_TYPED(kind, type, name, ...) { #kind, #type, #name, __VA_ARGS__ },
#define ROWS(type, FIELDS) static const struct row type##_rows[] = { FIELDS(ROW, ROW_TYPED) };
#define RECORD(type, FIELDS) { #type, type##_rows, sizeof type##_rows / sizeof *type##_rows, false },
/* clang-format on */

STATUS_RECORDS(ROWS)

static struct record records[] = { STATUS_RECORDS(RECORD) };

/* Answers that no record of fields.h describes: those of daemon/face/rpc/checksum.c and of
 * zeroctl's top, export, publish, import and plan. */
static const struct row checksum_rows[] = {
        { "text", NULL, "job", "name" },
        { "number", NULL, "version", "optimizer step of the values" },
        { "text", NULL, "checksum", "of all planes, in hexadecimal" },
        { "object", NULL, "planes", "the checksum of each plane, by its name" },
        { "flag", NULL, "mirrors_agree", "the mirrors hold the same bits; absent without mirrors" },
        { "object", NULL, "mirrors", "like planes, of the mirrors; absent without mirrors" },
};
static const struct row file_rows[] = {
        { "text", NULL, "job", "name" },
        { "text", NULL, "file", "path of the safetensors file; of publish: of the directory" },
        { "number", NULL, "version", "optimizer step of the values; not of import" },
        { "number", NULL, "tensors", "tensors in the file" },
        { "number", NULL, "bytes", "bytes of their values" },
};
static const struct row top_rows[] = {
        { "object", NULL, "shares",
          "each job's: the part of interval_s that waits took which ended in it, by their names as "
          "in waited; 1: all ranks or owners of this node waited all the time; a name that is new "
          "is absent" },
        { "number", NULL, "interval_s", "from the picture before to this one" },
};
static const struct row plan_rows[] = {
        { "object", NULL, "model",
          "numbers: parameters; elements, gaps between tensors included; trainable elements; "
          "groups; "
          "largest_group, its elements; tensors_left_out, which are whole numbers" },
        { "object", NULL, "rank",
          "bytes of each rank: push_window, activations (0: not known, or in the stash), stash; "
          "and "
          "its stage" },
        { "object", NULL, "zero_formula",
          "what the paper predicts of a process of its own: bytes_per_parameter; rank_bytes of "
          "model "
          "states (section 3.1); rank_elements that a process moves in a step (section 7)" },
        { "list of objects", NULL, "nodes", "all, in order; see below" },
        { "object", NULL, "step",
          "seconds: link_s, update_s, copy_s and compute_s, null if not given; at_least_s, the "
          "longest of them; bound_by, its name; estimate_s, which adds up what does not overlap, "
          "null if one of them is not known" },
        { "flag", NULL, "fits", "the memory given suffices; null: none was given" },
        { "object", NULL, "largest",
          "parameters and layers of the largest model that fits; layers null: all tensors are "
          "taken "
          "in proportion; null: no memory was given" },
        { "list of texts", NULL, "advice", "single changes that make the model fit" },
        { "number", NULL, "largest_share", "planes of the owner with most, over the mean" },
        { "object", NULL, "newton_schulz",
          "with --optimizer muon, else null: flops of a step; largest_share, those of the owner "
          "with "
          "most over the mean" },
        { "object", NULL, "measured",
          "with --measure: update_bytes_per_s, copy_bytes_per_s and link_bytes_per_s of the "
          "slowest "
          "node, absent if given, link null for one node; nodes, each with its own and with links: "
          "bytes_per_s received from each other node" },
};
static const struct row plan_node_rows[] = {
        { "number", NULL, "node", "number, from 0" },
        { "flag", NULL, "owner", "the node holds shards" },
        { "object", NULL, "planes", "bytes of each plane, mirrors included, as status has them" },
        { "object", NULL, "gather", "window_bytes and slots, as status has them" },
        { "number", NULL, "push_windows", "bytes of all ranks' push windows" },
        { "object", NULL, "buffers", "most bytes of sums, and of offers to receive" },
        { "number", NULL, "host_bytes", "bytes of host memory in total" },
        { "number", NULL, "gpu_bytes", "bytes of the GPU that holds most" },
        { "number", NULL, "stash", "bytes reserved for activation checkpoints" },
        { "object", NULL, "sent", "bytes a step to other nodes: gather, reduce and stash" },
        { "object", NULL, "received", "bytes a step from other nodes: gather, reduce and stash" },
        { "number", NULL, "gather_elements_received", "elements of parameters a step" },
        { "number", NULL, "reduce_elements_sent",
          "elements of gradients a step, without mirrors'" },
        { "number", NULL, "update_bytes", "bytes that an update reads and writes" },
        { "number", NULL, "copy_bytes", "bytes a step that copies and sums read and write" },
};
static const struct row paper_rows[] = {
        { "list of objects", NULL, "table1",
          "model, processes and stage; gb of model states by formula, and paper_gb" },
        { "list of objects", NULL, "table2",
          "model_parallel, gpus and stage (0: none); billions of parameters by formula, and "
          "paper_billions" },
        { "list of objects", NULL, "table3",
          "configuration, its parts and stage; billions of parameters by model states alone, and "
          "paper_billions as measured; null: not in the paper's text" },
};
#define OWN_RECORD(name)                                                                         \
        static const struct record name##_record = { NULL, name##_rows,                          \
                                                     sizeof name##_rows / sizeof name##_rows[0], \
                                                     false }
OWN_RECORD(checksum);
OWN_RECORD(file);
OWN_RECORD(top);
OWN_RECORD(plan);
OWN_RECORD(plan_node);
OWN_RECORD(paper);

enum { RECORDS = sizeof records / sizeof records[0], PREFIX = sizeof "status_" - 1 };

static const char head[] =
        ".TH ZEROCTL-JSON 5 \"\" \"zerod " ZEROD_VERSION "\" \"zerod\"\n"
        ".SH NAME\n"
        "zeroctl-json \\- what zeroctl --json prints\n"
        ".SH DESCRIPTION\n"
        "With\n"
        ".B \\-\\-json\n"
        ".BR zeroctl (1)\n"
        "prints the daemon's answer as one JSON object.\n"
        "A field is null if its value is not known, or if a number is not finite.\n"
        "Fields whose names end in _s are seconds.\n"
        "Counts begin when the daemon starts, or when the job comes to the node.\n"
        "Later versions may add fields.\n";

static const struct {
        const char *command, *type;
        const struct record *record; /* instead of a type */
} answers[] = {
        { "zeroctl status, top", "status_node", NULL },
        { "zeroctl top, beside that", NULL, &top_record },
        { "zeroctl jobs, wait", "status_jobs", NULL },
        { "zeroctl shards", "status_shards", NULL },
        { "zeroctl members, add-node, remove-node, takeover", "status_membership", NULL },
        { "zeroctl drain, undrain", "status_drained", NULL },
        { "zeroctl checkpoint, restore", "status_progress", NULL },
        { "zeroctl checkpoint --every", "status_ordered", NULL },
        { "zeroctl checkpoints", "status_kept_all", NULL },
        { "zeroctl ping", "status_ping", NULL },
        { "zeroctl doctor", "status_examined", NULL },
        { "zeroctl trace, without a file", "status_trace", NULL },
        { "zeroctl drop", "status_drop", NULL },
        { "zeroctl versions", "status_versions", NULL },
        { "zeroctl grants, grant, revoke", "status_grants", NULL },
        { "zeroctl config", "status_config", NULL },
        { "zeroctl set", "status_option", NULL },
        { "/api/map of HTTP", "status_map", NULL },
        { "zeroctl checksum", NULL, &checksum_record },
        { "zeroctl export, publish, import", NULL, &file_record },
        { "zeroctl plan", NULL, &plan_record },
        { "zeroctl plan: each of nodes", NULL, &plan_node_record },
        { "zeroctl plan --paper", NULL, &paper_record },
};

static struct record *record_find(const char *type)
{
        for (size_t i = 0; i < RECORDS; i++)
                if (strcmp(records[i].type, type) == 0)
                        return &records[i];
        return NULL;
}

static void print_text(const char *text)
{
        for (; *text; text++)
                printf(*text == '-' ? "\\-" : "%c", *text);
}

static void print_row(const struct row *row)
{
        bool called = strcmp(row->kind, "called") == 0;
        int n = called ? (int)strlen(row->type) - 2 : (int)strlen(row->name);

        printf(".TP\n.BR %.*s \" (", n, called ? row->type + 1 : row->name);
        if (called || strcmp(row->kind, "text") == 0)
                printf("text");
        else if (!row->type)
                printf("%s", row->kind);
        else
                printf(strcmp(row->kind, "list") == 0 ? "list of %s" : "%s", row->type + PREFIX);
        printf(")\"\n");
        print_text(row->doc);
        printf("\n");
        if (row->metric && row->metric != RECORD_LABEL)
                printf("(/metrics: %s)\n", row->metric_name);
}

static void print_rows(const struct record *record)
{
        for (size_t i = 0; i < record->n_rows; i++) {
                const struct row *row = &record->rows[i];
                struct record *part = row->type ? record_find(row->type) : NULL;

                if (part && strcmp(row->kind, "inlined") == 0) {
                        print_rows(part);
                        continue;
                }
                if (part)
                        part->named = true;
                print_row(row);
        }
}

int main(void)
{
        printf("%s.SH ANSWERS\n", head);
        for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
                printf(".SS ");
                print_text(answers[i].command);
                printf("\n");
                print_rows(answers[i].record ? answers[i].record : record_find(answers[i].type));
        }
        printf(".SH PARTS OF ANSWERS\n");
        for (size_t i = RECORDS;
             i-- > 0;) { /* fields.h has parts before the records that use them */
                if (!records[i].named)
                        continue;
                printf(".SS %s\n", records[i].type + PREFIX);
                print_rows(&records[i]);
        }
        printf(".SH SEE ALSO\n.BR zeroctl (1)\n");
        return 0;
}
