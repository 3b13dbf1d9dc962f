/*
 * man.c - run by the build: prints zeroctl-json(5), the fields of all answers, from fields.h.
 */
#include <stdio.h>
#include <string.h>

#include "daemon/status/fields.h"

struct row {
        const char *kind, *type, *name, *doc;
};

struct record {
        const char *type;
        const struct row *rows;
        size_t n_rows;
        bool named; /* in a record that was printed */
};

/* clang-format off */
#define ROW(kind, name, doc) { #kind, NULL, #name, doc },
#define ROW_TYPED(kind, type, name, doc) { #kind, #type, #name, doc },
#define ROWS(type, FIELDS) static const struct row type##_rows[] = { FIELDS(ROW, ROW_TYPED) };
#define RECORD(type, FIELDS) { #type, type##_rows, sizeof type##_rows / sizeof *type##_rows, false },
/* clang-format on */

STATUS_RECORDS(ROWS)

static struct record records[] = { STATUS_RECORDS(RECORD) };

/* Answers that no record of fields.h describes: those of daemon/rpc/checksum.c and of zeroctl's
 * export and import. */
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
        { "text", NULL, "file", "path of the safetensors file" },
        { "number", NULL, "version", "optimizer step of the values; export only" },
        { "number", NULL, "tensors", "tensors in the file" },
        { "number", NULL, "bytes", "bytes of their values" },
};
static const struct record checksum_record = { NULL, checksum_rows, 6, false };
static const struct record file_record = { NULL, file_rows, 5, false };

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
        { "zeroctl jobs, wait", "status_jobs", NULL },
        { "zeroctl shards", "status_shards", NULL },
        { "zeroctl members, add-node, remove-node, takeover", "status_membership", NULL },
        { "zeroctl checkpoint, restore", "status_progress", NULL },
        { "zeroctl checkpoint --every", "status_ordered", NULL },
        { "zeroctl ping", "status_ping", NULL },
        { "zeroctl drop", "status_drop", NULL },
        { "zeroctl config", "status_config", NULL },
        { "zeroctl checksum", NULL, &checksum_record },
        { "zeroctl export, import", NULL, &file_record },
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
