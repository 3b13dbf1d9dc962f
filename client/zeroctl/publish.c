/*
 * zeroctl publish: whole versions of a job's parameters as directories of safetensors files, while
 * the job trains.
 *
 * SIGINT, SIGTERM and SIGHUP are blocked but while the command waits for a version: between two
 * pieces the command looks for them, deletes what is not whole, and dies of them.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "progress.h"
#include "published.h"
#include "tensor_file.h"

enum { POLL_MS = 200 };

struct publish {
        struct ctl *ctl;
        sigset_t ends, before; /* the signals that end the command; the mask before it ran */
        struct published directory;
        bool attached;
        struct safetensor *tensors; /* in the layout's order */
        uint32_t n, n_files;
        uint64_t bytes, done;
        struct zero_weights weights;
        json_t *files; /* names of what was written into the version's directory */
        struct progress progress;
};

static long every = -1, keep, shard_size = 5000; /* every -1: once */

static int failed(const struct publish *p, const char *name, int error)
{
        /* a signal needs no word */
        return error == EINTR ? CTL_FAILED : published_error(&p->directory, name, error);
}

/* ---- waiting ------------------------------------------------------------------------------ */

/* A zero_status. */
static int try_hold(struct publish *p, uint64_t least)
{
        int r = p->attached ? ZERO_OK : zero_attach(p->ctl->client, NULL, NULL);

        p->attached = r == ZERO_OK;
        return r ? r : zero_follow(p->ctl->client, least, UINT64_MAX, 0, &p->weights);
}

/* Holds the newest version that is `least` or above, however long --every takes to get there. */
static int hold(struct publish *p, uint64_t least)
{
        double until = progress_now() + ctl_patience(p->ctl);
        bool told = false;

        for (;;) {
                int r = try_hold(p, least);
                bool lost = r == ZERO_ECLOSED || r == ZERO_ENOJOB;

                if (r == ZERO_OK)
                        return CTL_OK;
                if (!(r == ZERO_EDEADLINE && every > 0) && !(lost && progress_now() < until)) {
                        ctl_error("%s (%s)", zero_error(p->ctl->client), zero_status_name(r));
                        return CTL_FAILED;
                }
                if (!lost) {
                        until = progress_now() + ctl_patience(p->ctl);
                        if (!told)
                                ctl_error("publish: still waiting: %s", zero_error(p->ctl->client));
                        told = true;
                        continue;
                }
                p->attached = false; /* a job that is gone needs a new connection, too */
                do
                        progress_nap(POLL_MS);
                while (ctl_connect_again(p->ctl) && progress_now() < until);
        }
}

/* ---- writing ------------------------------------------------------------------------------ */

/* 0, or EINTR: a signal asks the command to end. */
static int asked_to_end(const struct publish *p)
{
        sigset_t now;

        sigpending(&now);
        sigandset(&now, &now, &p->ends);
        return sigisemptyset(&now) ? 0 : EINTR;
}

/* Creates a file of the version; a descriptor or -1. */
static int create(struct publish *p, int into, const char *name)
{
        if (json_array_append_new(p->files, json_string(name))) {
                errno = EILSEQ; /* the index could not name it */
                return -1;
        }
        return openat(into, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

/* Ends a file with what its writing came to; an errno. */
static int finish(int fd, int error)
{
        if (!error && fsync(fd) < 0)
                error = errno;
        if (close(fd) < 0 && !error)
                error = errno;
        return error;
}

static int put_tensor(struct publish *p, int fd, uint32_t tensor)
{
        const char *at = tensor_bytes(p->ctl->client, &p->weights, tensor);
        uint64_t left = p->tensors[tensor].bytes;
        int error = 0;

        while (left > 0 && !error) {
                size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;

                error = asked_to_end(p);
                if (!error)
                        error = -file_put(fd, at, n);
                at += n;
                left -= n;
                p->done += n;
                progress_show(&p->progress, "publishing", (double)p->done, (double)p->bytes);
        }
        return error;
}

static int put_shard(struct publish *p, int into, const char *name, uint32_t first, uint32_t end)
{
        int fd = create(p, into, name), error;

        if (fd < 0)
                return errno;
        error = -file_put_header(fd, p->tensors + first, end - first,
                                 safetensors_metadata(p->ctl->argument, p->weights.version));
        for (uint32_t i = first; i < end && !error; i++)
                error = put_tensor(p, fd, i);
        return finish(fd, error);
}

static int put_shards(struct publish *p, int into, json_t *weight_map)
{
        char name[PUBLISHED_NAME] = "model.safetensors";
        unsigned number = 1;

        for (uint32_t first = 0, end; first < p->n; first = end) {
                int error;

                if (p->n_files > 1)
                        snprintf(name, sizeof(name), "model-%05u-of-%05u.safetensors", number++,
                                 p->n_files);
                end = first;
                do
                        json_object_set_new(weight_map, p->tensors[end++].name, json_string(name));
                while (end < p->n && !tensor_begins(p->tensors, end));
                error = put_shard(p, into, name, first, end);
                if (error)
                        return failed(p, name, error);
        }
        return CTL_OK;
}

/* Written last, so that the index names all files. */
static int put_index(struct publish *p, int into, json_t *weight_map)
{
        int fd = create(p, into, PUBLISHED_INDEX), error = errno;
        json_t *metadata = safetensors_metadata(p->ctl->argument, p->weights.version);
        json_t *index = json_pack("{s:o, s:O}", "metadata", metadata, "weight_map", weight_map);
        char *text;

        json_object_set_new(metadata, "total_size", json_integer((json_int_t)p->bytes));
        json_object_set(metadata, "files", p->files);
        text = json_dumps(index, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
        json_decref(index);
        if (fd >= 0)
                error = finish(fd, text ? -file_put(fd, text, strlen(text)) : ENOMEM);
        free(text);
        return error ? failed(p, PUBLISHED_INDEX, error) : CTL_OK;
}

static int copy_file(struct publish *p, int into, const char *path, char *buffer)
{
        char copy[PATH_MAX];
        struct stat st;
        int in = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), out, error = 0;
        ssize_t n = 1;

        if (in < 0)
                return errno;
        snprintf(copy, sizeof(copy), "%s", path);
        error = fstat(in, &st) < 0 ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
        out = error ? -1 : create(p, into, basename(copy));
        if (out < 0 && !error)
                error = errno;
        while (!error && n > 0) {
                n = read(in, buffer, PIECE_BYTES);
                error = n < 0 ? errno : asked_to_end(p);
                if (!error)
                        error = -file_put(out, buffer, (size_t)n);
        }
        close(in);
        return out < 0 ? error : finish(out, error);
}

static int put_copies(struct publish *p, int into)
{
        char *buffer = malloc(PIECE_BYTES);
        int r = buffer ? CTL_OK : failed(p, "", ENOMEM);

        for (char **path = p->ctl->more; r == CTL_OK && *path; path++) {
                int error = copy_file(p, into, *path, buffer);

                if (error && error != EINTR)
                        ctl_error("%s cannot be copied into %s: %s", *path, p->ctl->file,
                                  error == EINVAL ? "it is no file" : strerror(error));
                r = error ? CTL_FAILED : CTL_OK;
        }
        free(buffer);
        return r;
}

static int put_all(struct publish *p, int into)
{
        json_t *weight_map = json_object();
        int r;

        p->files = json_array();
        progress_init(&p->progress, p->ctl->json);
        r = put_copies(p, into);
        if (r == CTL_OK)
                r = put_shards(p, into, weight_map);
        if (r == CTL_OK)
                r = put_index(p, into, weight_map);
        progress_end(&p->progress);
        json_decref(weight_map);
        json_decref(p->files);
        return r;
}

/* The job may have another layout after a restore. */
static int list_tensors(struct publish *p)
{
        int r = tensor_list(zero_client_layout(p->ctl->client), false,
                            (uint64_t)shard_size * 1000000, &p->tensors, &p->n);

        p->bytes = p->done = p->n_files = 0;
        for (uint32_t i = 0; r == CTL_OK && i < p->n; i++) {
                p->n_files += tensor_begins(p->tensors, i);
                p->bytes += p->tensors[i].bytes;
        }
        return r;
}

/* Writes the version that is held. */
static int publish(struct publish *p)
{
        char name[PUBLISHED_NAME], path[PATH_MAX];
        uint64_t version = p->weights.version;
        int into, r = list_tensors(p);

        if (r != CTL_OK)
                return r;
        r = published_begin(&p->directory, version, &into);
        if (r == CTL_OK)
                r = published_end(&p->directory, version, into, put_all(p, into) == CTL_OK);
        free(p->tensors);
        if (r != CTL_OK)
                return r;
        published_name(name, version, false);
        snprintf(path, sizeof(path), "%s/%s", p->ctl->file, name);
        return file_show(p->ctl, p->ctl->argument, path, version, p->n, p->bytes);
}

/* ---- the command -------------------------------------------------------------------------- */

static void block_signals(struct publish *p)
{
        const int ends[] = { SIGINT, SIGTERM, SIGHUP };
        struct sigaction now;

        sigemptyset(&p->ends);
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
                if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
                        sigaddset(&p->ends, ends[i]);
        sigprocmask(SIG_BLOCK, &p->ends, &p->before);
}

static int follow(struct publish *p)
{
        int r;

        do {
                /* the next multiple; 0 where nothing is published */
                uint64_t n = every > 0 ? (uint64_t)every : 1;
                uint64_t least = every > 0 ? (p->directory.free + n - 1) / n * n : 0;

                sigprocmask(SIG_SETMASK, &p->before, NULL); /* waiting, it may just die */
                r = hold(p, least);
                sigprocmask(SIG_BLOCK, &p->ends, NULL);
                if (r == CTL_OK) {
                        r = publish(p);
                        zero_unfollow(p->ctl->client, &p->weights); /* lost: it is held no more */
                }
        } while (r == CTL_OK && every > 0);
        return r;
}

static int run(struct ctl *ctl)
{
        struct publish p = { .ctl = ctl };
        int r;

        block_signals(&p);
        r = published_open(ctl->file, ctl->argument, keep, &p.directory);
        if (r == CTL_OK) {
                r = follow(&p);
                published_close(&p.directory);
        }
        sigprocmask(SIG_SETMASK, &p.before, NULL);
        return r;
}

static int check(const struct ctl *ctl)
{
        (void)ctl;
        if (every != 0 && shard_size != 0)
                return CTL_OK;
        ctl_error("--%s is at least 1", every == 0 ? "every" : "shard-size");
        return CTL_USAGE;
}

static const struct command_option options[] = {
        { "every", "N",
          "go on, and publish a version whenever the job has reached the next multiple of N steps",
          .count = &every },
        { "keep", "N",
          "delete all published versions in DIR but the newest N; 0 (the default) keeps all",
          .count = &keep },
        { "shard-size", "MB", "at most so many million bytes a file (default: 5000)",
          .count = &shard_size },
        { 0 },
};

const struct command command_publish = {
        .name = "publish",
        .arguments = "JOB DIR [FILE]...",
        .summary = "write whole versions to DIR while the job trains",
        .description =
                "Writes the newest version of the job's parameters to "
                "<DIR>/version-<NNNNNNNN>, in the type that trainers are given, while the job "
                "trains: files of safetensors and *model.safetensors.index.json*, as Hugging Face "
                "lays them out, and copies of each <FILE>, such as the tokenizer's and "
                "config.json. *transformers* loads such a directory. If <DIR> is missing it is "
                "made, but nothing above it is. <DIR>/latest is a symbolic link to the newest "
                "version in <DIR>.\n"
                "With *--every* the command goes on. A version that passes while another one is "
                "written is left out, and the newest is written in its place. A lost daemon, and a "
                "job that is gone, are looked for as long as *--timeout* says. The command waits "
                "for steps as long as the job is there.\n"
                "The command reads as a client, in memory that all readers of a node share. Ranks "
                "wait for nothing, and no error of a disk reaches the daemon. The version that is "
                "written takes one of the copies that *follow_copies* allows; see "
                "*zerod.conf*(5).\n"
                "A version appears as a whole or not at all. While it is written its name is "
                ".version-<NNNNNNNN>.partial. The next command for <DIR> deletes what a killed one "
                "has left, and goes on above the newest version there. One command at a time "
                "writes to <DIR>, for one job. After a restore to an earlier version, or of "
                "another run of the job, the command waits until the job has passed the newest "
                "version in <DIR>. *--keep* leaves a version in which there are other files.\n"
                "On SIGINT, SIGTERM and SIGHUP the command deletes what is not whole, and ends by "
                "that signal.",
        .options = options,
        .check = check,
        .run = run,
        .of_job = true,
};
