/* See operation.h. */
#include "operation.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress.h"
#include "units.h"

enum { POLL_MS = 100 };

/* ---- beginning ---------------------------------------------------------------- */

/* Appends a word to the path; ".." removes the last one. */
static bool add_word(char *path, const char *word)
{
        char *last = strrchr(path, '/');

        if (*word == '\0' || strcmp(word, ".") == 0)
                return true;
        if (strcmp(word, "..") == 0) {
                if (last)
                        *last = '\0';
                return true;
        }
        if (strlen(path) + strlen(word) + 2 > PATH_MAX)
                return false;
        strcat(strcat(path, "/"), word);
        return true;
}

/* The absolute path without "." and "..", as daemons require. */
static int absolute_path(const char *path, char ret[static PATH_MAX])
{
        char *copy = strdup(path), *rest = copy, *word;
        bool fits = copy != NULL;

        ret[0] = '\0';
        if (path[0] != '/' && !getcwd(ret, PATH_MAX)) {
                ctl_error("the working directory: %s", strerror(errno));
                free(copy);
                return CTL_FAILED;
        }
        if (strcmp(ret, "/") == 0)
                ret[0] = '\0';
        while (fits && (word = strsep(&rest, "/")))
                fits = add_word(ret, word);
        free(copy);
        if (fits)
                return CTL_OK;
        ctl_error("the path is too long");
        return CTL_USAGE;
}

/* What this process sees at the path, or nearest above it: the daemon may have other mounts. */
static json_t *seen(const char *path)
{
        char at[PATH_MAX];
        struct stat st;

        snprintf(at, sizeof at, "%s", path);
        while (stat(*at ? at : "/", &st) < 0 && *at)
                *strrchr(at, '/') = '\0';
        return json_sprintf("%llx:%llx %s", (unsigned long long)st.st_dev,
                            (unsigned long long)st.st_ino, *at ? at : "/");
}

int operation_place(const char *directory, json_t **ret)
{
        char path[PATH_MAX];
        int r = absolute_path(directory, path);

        if (r != CTL_OK)
                return r;
        *ret = json_object();
        json_object_set_new(*ret, "directory", json_string(path));
        json_object_set_new(*ret, "seen", seen(path));
        if (json_object_size(*ret) == 2)
                return CTL_OK;
        ctl_error("'%s' must be UTF-8", directory);
        json_decref(*ret);
        return CTL_USAGE;
}

int operation_begin(struct ctl *ctl, const char *what, const struct operation_more *more,
                    json_t **ret_answer)
{
        json_t *request;
        char *text;
        int r = operation_place(ctl->file, &request);

        if (r != CTL_OK)
                return r;
        json_object_set_new(request, "job", json_string(ctl->argument));
        for (; more && more->name; more++) {
                if (more->text)
                        json_object_set_new(request, more->name, json_string(more->text));
                else if (more->value >= 0)
                        json_object_set_new(request, more->name, json_integer(more->value));
        }
        text = json_dumps(request, JSON_COMPACT);
        json_decref(request);
        if (!text) {
                ctl_error("out of memory");
                return CTL_FAILED;
        }
        r = ctl_ask_about(ctl, what, text, ret_answer);
        free(text);
        return r;
}

/* ---- until it is over --------------------------------------------------------------- */

/* Prints how long an update may have to wait, before it does. */
static void tell_stall(const struct ctl *ctl, const json_t *answer, bool *told)
{
        const json_t *stall = json_object_get(answer, "predicted_stall_s");

        if (*told || ctl->json || !json_is_number(stall))
                return;
        *told = true;
        fprintf(stderr, "%s to be written; an update may wait for about %s\n",
                unit_bytes(field_number(answer, "bytes")).text,
                unit_seconds(json_number_value(stall)).text);
}

static void tell_waits(struct ctl *ctl, const json_t *answer, bool *told)
{
        const char *waits = field_text(answer, "waits");

        if (!ctl->json && *waits && !*told)
                fprintf(stderr, "zeroctl: %s\n", waits);
        *told = *waits;
}

static int follow(struct ctl *ctl, double id, json_t **ret_answer)
{
        struct progress progress;
        json_t *answer = NULL;
        bool told = false, told_waits = false;
        int r;

        progress_init(&progress, ctl->json);
        for (;;) {
                r = ctl_ask(ctl, "progress", &answer);
                if (r != CTL_OK)
                        break;
                tell_stall(ctl, answer, &told);
                tell_waits(ctl, answer, &told_waits);
                progress_show(&progress, field_text(answer, "phase"),
                              field_number(answer, "done_bytes"), field_number(answer, "bytes"));
                if (field_true(answer, "over") || field_number(answer, "id") != id)
                        break;
                json_decref(answer);
                progress_nap(POLL_MS);
        }
        progress_end(&progress);
        if (r == CTL_OK)
                *ret_answer = answer;
        return r;
}

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        double seconds = field_number(answer, "elapsed_s"), bytes = field_number(answer, "bytes");

        fprintf(out, "job %s, version %.0f: %s %s, %s in %s (%s/s)\n", field_text(answer, "job"),
                field_number(answer, "version"),
                strcmp(field_text(answer, "operation"), "restore") == 0 ? "restored from"
                                                                        : "checkpoint",
                field_text(answer, "path"), unit_bytes(bytes).text, unit_seconds(seconds).text,
                unit_bytes(seconds > 0 ? bytes / seconds : 0).text);
}

int operation_await(struct ctl *ctl, const char *what, const struct operation_more *more,
                    json_t **ret_answer)
{
        json_t *answer = NULL;
        double id;
        int r = operation_begin(ctl, what, more, &answer);

        if (r != CTL_OK)
                return r;
        id = field_number(answer, "id");
        json_decref(answer);
        r = follow(ctl, id, &answer);
        if (r != CTL_OK)
                return r;
        if (field_number(answer, "id") != id) {
                ctl_error("%s: another one has begun since, so the outcome of this one is unknown",
                          what);
                r = CTL_FAILED;
        } else if (strcmp(field_text(answer, "status"), "OK") != 0) {
                ctl_error("%s: %s (%s)", what, field_text(answer, "error"),
                          field_text(answer, "status"));
                r = CTL_FAILED;
        }
        if (r == CTL_OK)
                *ret_answer = answer;
        else
                json_decref(answer);
        return r;
}

int operation_carry_out(struct ctl *ctl, const char *what, const struct operation_more *more)
{
        json_t *answer;
        int r = operation_await(ctl, what, more, &answer);

        return r == CTL_OK ? ctl_show(ctl, answer, show) : r;
}
