/*
 * zeroctl export: a job's parameters as a safetensors file.
 *
 * Reads tensor by tensor, piece by piece, into a temporary file, and renames the file when it is
 * whole and on the disk.  If the job has stepped meanwhile there is no file: it would hold
 * parameters of two versions.  With --at-version the command holds that version, as a reader, and
 * the job may step.  A checkpoint is restored as a job of its own, which goes afterwards.
 */
#include "ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "operation.h"
#include "progress.h"
#include "tensor_file.h"

enum { WORD = 4 };

static long at_version = -1;

struct export
{
        struct ctl *ctl;
        const char *label; /* the job's name in the file */
        const struct zero_layout *layout;
        enum zero_plane plane;
        struct safetensor *tensors; /* in the layout's order */
        uint32_t n;
        uint64_t bytes, done;
        uint64_t version;            /* of the values; a new connection may find a later one */
        struct zero_weights weights; /* with --at-version: what is held */
        char temporary[PATH_MAX];
        int fd;
        struct progress progress;
};

static int failed(const char *path)
{
        ctl_error("%s: %s", path, strerror(errno));
        return CTL_FAILED;
}

/* ---- writing ------------------------------------------------------------------------ */

static int put(struct export *e, const void *data, size_t n)
{
        errno = -file_put(e->fd, data, n);
        return errno ? failed(e->temporary) : CTL_OK;
}

static int put_header(struct export *e)
{
        errno = -file_put_header(e->fd, e->tensors, e->n,
                                 safetensors_metadata(e->label, e->version));
        return errno ? failed(e->temporary) : CTL_OK;
}

static int put_held(struct export *e, uint32_t tensor)
{
        const char *at = tensor_bytes(e->ctl->client, &e->weights, tensor);
        uint64_t left = e->tensors[tensor].bytes;
        int r = CTL_OK;

        while (r == CTL_OK && left > 0) {
                size_t n = left < PIECE_BYTES ? left : PIECE_BYTES;

                r = put(e, at, n);
                at += n;
                left -= n;
                e->done += n;
                progress_show(&e->progress, "exporting", (double)e->done, (double)e->bytes);
        }
        return r;
}

static int put_tensor(struct export *e, uint32_t tensor, void *buffer)
{
        const struct safetensor *t = &e->tensors[tensor];
        size_t size = t->element == 1 ? WORD : t->element; /* of what zero_get() counts */
        uint64_t left = zero_layout_tensor_elements(e->layout, tensor), first = 0;

        while (left > 0) {
                uint64_t n = left < PIECE_BYTES / size ? left : PIECE_BYTES / size;
                uint64_t end = (first + n) * size < t->bytes ? (first + n) * size : t->bytes;
                int r = zero_get(e->ctl->client, tensor, e->plane, first, n, buffer);

                if (r) {
                        ctl_error("%s (%s)", zero_error(e->ctl->client), zero_status_name(r));
                        return CTL_FAILED;
                }
                r = put(e, buffer, end - first * size);
                if (r != CTL_OK)
                        return r;
                e->done += end - first * size;
                first += n;
                left -= n;
                progress_show(&e->progress, "exporting", (double)e->done, (double)e->bytes);
        }
        return CTL_OK;
}

static int put_all(struct export *e)
{
        void *buffer = malloc(PIECE_BYTES);
        int r = buffer ? put_header(e) : CTL_FAILED;

        for (uint32_t i = 0; r == CTL_OK && i < e->n; i++)
                r = at_version < 0 ? put_tensor(e, i, buffer) : put_held(e, i);
        free(buffer);
        return r;
}

/* ---- one version ----------------------------------------------------------------------- */

/* The latest version of any owner's shards: no value read before this call is newer. */
static int version_now(struct ctl *ctl, double *ret)
{
        json_t *answer, *group, *shard, *version;
        size_t i, k;
        int r = ctl_ask_about(ctl, "shards", ctl->argument, &answer);

        if (r != CTL_OK)
                return r;
        *ret = 0;
        json_array_foreach(
                json_object_get(json_array_get(json_object_get(answer, "jobs"), 0), "groups"), i,
                group)
        {
                json_array_foreach(json_object_get(group, "shards"), k, shard)
                {
                        version = json_object_get(shard, "version");
                        if (!json_is_number(version))
                                *ret = -1; /* the shard's owner is away */
                        else if (*ret >= 0 && json_number_value(version) > *ret)
                                *ret = json_number_value(version);
                }
        }
        json_decref(answer);
        return CTL_OK;
}

static int check_version(struct export *e)
{
        double after;
        int r = version_now(e->ctl, &after);

        if (r != CTL_OK || (after >= 0 && after <= (double)e->version))
                return r;
        if (after < 0)
                ctl_error("job '%s': not all owners say which version their shards have",
                          e->ctl->argument);
        else
                ctl_error("job '%s' went from version %llu to %.0f meanwhile, so the file would "
                          "mix both: export when no trainer runs, or with --at-version, or what "
                          "'zeroctl checkpoint' writes while they run; of a checkpoint: zeroctl "
                          "export DIR/%s-VERSION FILE",
                          e->ctl->argument, (unsigned long long)e->version, after,
                          e->ctl->argument);
        return CTL_FAILED;
}

/* ---- the file's name ---------------------------------------------------------------------- */

static int sync_directory(const char *file)
{
        char path[PATH_MAX];
        int fd, r;

        snprintf(path, sizeof(path), "%s", file);
        fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return failed(path);
        r = fsync(fd) < 0 ? failed(path) : CTL_OK;
        close(fd);
        return r;
}

static int finish(struct export *e)
{
        const char *file = e->ctl->file;
        int r = at_version < 0 ? check_version(e) : CTL_OK;

        if (r != CTL_OK)
                return r;
        if (fsync(e->fd) < 0 || rename(e->temporary, file) < 0)
                return failed(file);
        return sync_directory(file);
}

static int write_file(struct export *e)
{
        int n = snprintf(e->temporary, sizeof(e->temporary), "%s.partial-%ld", e->ctl->file,
                         (long)getpid());
        int r;

        if (n < 0 || (size_t)n >= sizeof(e->temporary)) {
                ctl_error("the path is too long");
                return CTL_USAGE;
        }
        e->fd = open(e->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (e->fd < 0)
                return failed(e->temporary);
        progress_init(&e->progress, e->ctl->json);
        r = put_all(e);
        if (r == CTL_OK)
                r = finish(e);
        progress_end(&e->progress);
        close(e->fd);
        if (r != CTL_OK)
                unlink(e->temporary);
        return r;
}

static const char *dtype = "";

static const struct command_option options[] = {
        { "dtype", "TYPE",
          "of the values: fp32 (default) or serve, what trainers are given, as always with "
          "--at-version",
          .text = &dtype },
        { "at-version", "N", "the job's version N, waited for, while the job trains",
          .count = &at_version },
        { 0 },
};

static int check(const struct ctl *ctl)
{
        if (at_version >= 0 && strchr(ctl->argument, '/')) {
                ctl_error("a checkpoint has one version: leave --at-version out");
                return CTL_USAGE;
        }
        if (at_version >= 0 && strcmp(dtype, "fp32") == 0) {
                ctl_error("a version that a reader holds has what trainers are given, and no fp32 "
                          "master weights: leave --dtype out, or export a checkpoint of it");
                return CTL_USAGE;
        }
        if (!*dtype)
                dtype = at_version < 0 ? "fp32" : "serve";
        if (strcmp(dtype, "fp32") == 0 || strcmp(dtype, "serve") == 0)
                return CTL_OK;
        ctl_error("--dtype is fp32 or serve, not '%s'", dtype);
        return CTL_USAGE;
}

/* Until the connection's end. */
static int hold(struct export *e)
{
        uint64_t n = (uint64_t)at_version;
        int r = zero_follow(e->ctl->client, n, n, 0, &e->weights);

        e->version = n;
        if (r)
                ctl_error("%s (%s)", zero_error(e->ctl->client), zero_status_name(r));
        return r ? CTL_FAILED : CTL_OK;
}

/* label: the job's name in the file. */
static int export_job(struct ctl *ctl, const char *label)
{
        bool serve = strcmp(dtype, "serve") == 0;
        struct export e = { .ctl = ctl,
                            .label = label,
                            .plane = serve ? ZERO_PLANE_SERVE : ZERO_PLANE_MASTER };
        int r = ctl_attach(ctl);

        if (r != CTL_OK)
                return r;
        e.layout = zero_client_layout(ctl->client);
        e.version = zero_steps(ctl->client);
        r = at_version < 0 ? CTL_OK : hold(&e);
        if (r != CTL_OK)
                return r;
        r = tensor_list(e.layout, !serve, UINT64_MAX, &e.tensors, &e.n);
        if (r != CTL_OK)
                return r;
        if (e.n > 0)
                e.bytes = e.tensors[e.n - 1].at + e.tensors[e.n - 1].bytes;
        r = write_file(&e);
        free(e.tensors);
        return r == CTL_OK ? file_show(ctl, label, ctl->file, e.version, e.n, e.bytes) : r;
}

/* ---- a checkpoint ------------------------------------------------------------------------ */

static int drop(struct ctl *ctl, const char *job)
{
        json_t *answer = NULL;
        int r = ctl_ask_about(ctl, "drop", job, &answer);

        if (r != CTL_OK)
                ctl_error("job '%s', a copy of the checkpoint, is left: zeroctl drop %s", job, job);
        json_decref(answer);
        return r;
}

/* Of DIR/JOB-VERSION; of another name as it is. */
static void name_of_job(const char *path, char ret[static ZERO_NAME_MAX + 1])
{
        char copy[PATH_MAX], *name, *dash;

        snprintf(copy, sizeof(copy), "%s", path);
        name = basename(copy);
        dash = strrchr(name, '-');
        if (dash && dash != name && !dash[1 + strspn(dash + 1, "0123456789")])
                *dash = '\0';
        snprintf(ret, ZERO_NAME_MAX + 1, "%s", name);
}

/* ctl: connected, but not to a job. */
static int export_checkpoint(struct ctl *ctl)
{
        char job[64], label[ZERO_NAME_MAX + 1];
        struct ctl restoring = *ctl, copy = *ctl;
        json_t *answer = NULL;
        int r;

        name_of_job(ctl->argument, label);
        snprintf(job, sizeof(job), "export-%ld-%ld", (long)getpid(), (long)time(NULL));
        restoring.argument = copy.argument = copy.options.job = job;
        restoring.file = ctl->argument;
        r = operation_await(&restoring, "restore", NULL, &answer);
        if (r != CTL_OK)
                return r;
        json_decref(answer);
        r = ctl_connect_again(&copy) ? CTL_FAILED : export_job(&copy, label);
        ctl->client = copy.client;
        return drop(&copy, job) == CTL_OK ? r : CTL_FAILED;
}

static int run(struct ctl *ctl)
{
        return strchr(ctl->argument, '/') ? export_checkpoint(ctl) : export_job(ctl, ctl->argument);
}

const struct command command_export = {
        .name = "export",
        .arguments = "JOB FILE",
        .summary = "write a job's parameters to a safetensors file",
        .description =
                "Writes the job's parameters to a safetensors file, in fp32 or, with *--dtype "
                "serve*, in the type that trainers are given; int8, uint8, fp8 and bool in their "
                "own type. The file appears when it is whole. If the job steps meanwhile there is "
                "no file.\n"
                "Of a job that trains, *--at-version* writes a whole version in the type that "
                "trainers are given, and *publish* writes such versions again and again. The "
                "command waits for the version as long as *--timeout* says, and fails if the job "
                "is past it. Such a version has neither moments nor fp32 master weights. For "
                "those, export a checkpoint: <JOB> may be <DIR>/<JOB>-<VERSION>, or "
                "./<JOB>-<VERSION>. It is restored as a job named export-..., which takes the "
                "memory of one more job and is dropped at the end; the job that trains goes on. If "
                "the command is killed, drop that one.",
        .options = options,
        .check = check,
        .run = run,
        .of_job = true,
        .or_path = true,
};
