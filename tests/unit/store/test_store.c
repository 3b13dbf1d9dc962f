/* The state directory: who may open it, and what counts. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store/directory.h"
#include "daemon/store/file.h"
#include "fixture.h"

enum { NOBODY = 65534 };

static int refuse(const char *directory, struct fault *fault)
{
        struct store *store = NULL;
        int r = store_open(directory, 0, &store, fault);

        cr_assert_null(store);
        return r;
}

Test(store, makes_its_directory_for_itself_alone)
{
        char *directory = fixture_directory();
        struct stat st;

        rmdir(directory);
        store_close(fixture_store(directory));
        cr_assert_eq(stat(directory, &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0700);
        fixture_remove(directory);
}

Test(store, a_second_one_is_told_who_has_the_directory)
{
        char *directory = fixture_directory(), pid[32];
        struct store *store = fixture_store(directory);
        struct fault fault;

        cr_assert_eq(refuse(directory, &fault), ZERO_EBUSY);
        cr_assert(strstr(fault.text, directory));
        snprintf(pid, sizeof(pid), "process %ld:", (long)getpid());
        cr_assert(strstr(fault.text, pid), "%s", fault.text);
        store_close(store);
        fixture_remove(directory);
}

Test(store, a_killed_holder_leaves_the_directory_free)
{
        char *directory = fixture_directory(), byte;
        int ready[2], status;

        cr_assert_eq(pipe(ready), 0);
        pid_t pid = fork();
        if (pid == 0) {
                fixture_store(directory);
                if (write(ready[1], "x", 1) == 1)
                        pause();
                _exit(1);
        }
        cr_assert_eq(read(ready[0], &byte, 1), 1);
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        store_close(fixture_store(directory));
        fixture_remove(directory);
}

Test(store, a_directory_open_to_others_is_refused)
{
        char *directory = fixture_directory();
        struct fault fault;

        chmod(directory, 0750);
        cr_assert_eq(refuse(directory, &fault), ZERO_EPERM);
        cr_assert(strstr(fault.text, "750"));
        chmod(directory, 0700);
        fixture_remove(directory);
}

Test(store, a_directory_of_another_user_is_refused)
{
        if (geteuid() != 0)
                cr_skip_test("only root can give a directory away");
        char *directory = fixture_directory();
        struct fault fault;

        cr_assert_eq(chown(directory, NOBODY, NOBODY), 0);
        cr_assert_eq(refuse(directory, &fault), ZERO_EPERM);
        cr_assert(strstr(fault.text, "65534"));
        fixture_remove(directory);
}

Test(store, a_symbolic_link_is_refused)
{
        char *directory = fixture_directory(), link[256];

        snprintf(link, sizeof(link), "%s.link", directory);
        cr_assert_eq(symlink(directory, link), 0);
        cr_assert_eq(refuse(link, NULL), ZERO_EIO);
        unlink(link);
        fixture_remove(directory);
}

Test(store, half_made_files_are_deleted)
{
        char *directory = fixture_directory(), temporary[STORE_FILE_NAME], path[512];

        store_temporary_name("x.0.state", temporary);
        snprintf(path, sizeof(path), "%s/%s", directory, temporary);
        close(open(path, O_CREAT | O_WRONLY, 0600));
        cr_assert_eq(access(path, F_OK), 0);
        store_close(fixture_store(directory));
        cr_assert_neq(access(path, F_OK), 0);
        fixture_remove(directory);
}

Test(store, file_names_stay_inside_the_directory)
{
        static const char *const jobs[] = {
                "a", "../../etc/passwd", ".", "..", "", "-rf", "\n\xff"
        };
        char name[STORE_FILE_NAME], other[STORE_FILE_NAME], longest[ZERO_NAME_MAX + 1];

        memset(longest, 'x', ZERO_NAME_MAX);
        longest[ZERO_NAME_MAX] = 0;
        for (int i = 0; i < 8; i++) {
                store_file_name(&(struct state_identity){ .job = job_spec_named(i < 7 ? jobs[i] : longest),
                                                          .copy = 1,
                                                          .epoch = UINT64_MAX },
                                UINT32_MAX, name);
                cr_assert(store_is_state(name), "%s", name);
                cr_assert_null(strchr(name, '/'));
                store_temporary_name(name, other);
                cr_assert(!store_is_state(other));
        }
}

static void name_of(const char *job, uint32_t owner, char ret[static STORE_FILE_NAME])
{
        store_file_name(&(struct state_identity){ .job = job_spec_named(job) }, owner, ret);
}

Test(store, different_jobs_and_owners_have_different_files)
{
        char a[STORE_FILE_NAME], b[STORE_FILE_NAME], job[ZERO_NAME_MAX + 1];

        memset(job, 'x', ZERO_NAME_MAX);
        job[ZERO_NAME_MAX] = 0;
        name_of(job, 1, a);
        job[ZERO_NAME_MAX - 1] = 'y';
        name_of(job, 1, b);
        cr_assert_str_neq(a, b);
        name_of("a/b", 1, a);
        name_of("a.b", 1, b);
        cr_assert_str_neq(a, b);
        name_of("a.b", 2, a);
        cr_assert_str_neq(a, b);
}

Test(store, quota_is_charged_for_what_lies_there)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout();
        struct state *state = fixture_state(store, "j", l, 1, 0, 1);
        uint64_t bytes = state_bytes(state), serve = state->plan->serve_bytes;

        cr_assert_gt(serve, 0);
        cr_assert_eq(store_used(store), bytes);
        state_close(state);
        cr_assert_eq(store_used(store), bytes - serve);
        store_close(store);

        store = fixture_store(directory);
        cr_assert_eq(store_used(store), bytes - serve);
        layout_free(l);
        state = fixture_reopen(store, &l);
        cr_assert_eq(store_used(store), bytes);
        state_drop(state);
        cr_assert_eq(store_used(store), 0);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

static int count(const char *file, void *arg)
{
        ++*(int *)arg;
        return 0;
}

static int create(struct store *store, const layout *l, struct fault *fault)
{
        struct state_identity id = { .job.name = "j", .n_owners = 1 };
        struct plan *plan = fixture_plan(l, 1, 0, LAYOUT_ALIGN);
        struct state *state = NULL;
        int r = state_create(store, &id, l, plan, 1, &state, fault);

        if (r)
                plan_free(plan);
        state_close(state);
        return r;
}

Test(store, a_state_beyond_the_quota_is_refused_and_leaves_nothing)
{
        char *directory = fixture_directory();
        struct store *store = NULL;
        layout *l = fixture_layout();
        struct fault fault;
        int files = 0;

        cr_assert_eq(store_open(directory, 20000, &store, &fault), 0);
        cr_assert_eq(create(store, l, &fault), ZERO_EQUOTA);
        cr_assert(strstr(fault.text, "20000"), "%s", fault.text);
        cr_assert_eq(store_used(store), 0);
        cr_assert_eq(store_each(store, count, &files), 0);
        cr_assert_eq(files, 0);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

Test(store, more_than_the_file_system_has_is_refused_with_figures)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        struct fault fault;

        cr_assert_eq(store_admit(store, UINT64_C(1) << 60, 0, "job j", &fault), ZERO_ESHM);
        cr_assert(strstr(fault.text, "1152921504606846976"), "%s", fault.text);
        cr_assert(strstr(fault.text, "job j"));
        store_close(store);
        fixture_remove(directory);
}

static int stop(const char *file, void *arg)
{
        ++*(int *)arg;
        return 7;
}

Test(store, each_names_every_state_until_told_to_stop)
{
        char *directory = fixture_directory();
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout();
        int n = 0;

        state_close(fixture_state(store, "a", l, 1, 0, 1));
        state_close(fixture_state(store, "b", l, 1, 0, 1));
        cr_assert_eq(store_each(store, count, &n), 0);
        cr_assert_eq(n, 2);
        n = 0;
        cr_assert_eq(store_each(store, stop, &n), 7);
        cr_assert_eq(n, 1);
        store_close(store);
        layout_free(l);
        fixture_remove(directory);
}

/* ---- a crash loop ---- */

static int open_and_close(const char *file, void *arg)
{
        struct state *state = NULL;
        layout *l = NULL;

        if (state_open(arg, file, &state, &l, NULL) == 0) {
                state_close(state);
                layout_free(l);
        }
        return 0;
}

static void write_bytes(const char *directory, const char *name, off_t at, const char *bytes)
{
        char path[512];

        snprintf(path, sizeof(path), "%s/%s", directory, name);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        cr_assert_eq(pwrite(fd, bytes, strlen(bytes), at), (ssize_t)strlen(bytes));
        close(fd);
}

/* The sum over all files of their names, lengths and bytes. */
static uint64_t fingerprint(const char *directory)
{
        DIR *d = opendir(directory);
        uint64_t sum = 0;

        for (struct dirent *e; (e = readdir(d));) {
                uint8_t hash[16], bytes[4096];
                crypto_generichash_state state;
                uint64_t value;
                ssize_t n;

                if (e->d_name[0] == '.')
                        continue;
                crypto_generichash_init(&state, NULL, 0, sizeof(hash));
                crypto_generichash_update(&state, (const uint8_t *)e->d_name, strlen(e->d_name));
                int fd = openat(dirfd(d), e->d_name, O_RDONLY);
                while ((n = read(fd, bytes, sizeof(bytes))) > 0)
                        crypto_generichash_update(&state, bytes, (size_t)n);
                close(fd);
                crypto_generichash_final(&state, hash, sizeof(hash));
                memcpy(&value, hash, sizeof(value));
                sum += value;
        }
        closedir(d);
        return sum;
}

Test(store, a_crash_loop_deletes_and_changes_nothing)
{
        char *directory = fixture_directory(), damaged[STORE_FILE_NAME];
        struct store *store = fixture_store(directory);
        layout *l = fixture_layout();
        struct state *state = fixture_state(store, "a", l, 1, 0, 1);

        state_abort(state, 1);
        cr_assert_eq(state_blob_stage(state, 2, 1, "where", 5), 0);
        state_prepare(state, state->record);
        state_close(state);
        state = fixture_state(store, "b", l, 1, 0, 1);
        strcpy(damaged, state->in->file);
        state_close(state);
        write_bytes(directory, damaged, 100, "damage");
        write_bytes(directory, "short.0.state", 0, "x");
        write_bytes(directory, "alone.0.blobs", 0, "of a state that was moved away");
        write_bytes(directory, "unknown", 0, "somebody's");
        store_close(store);

        uint64_t before = fingerprint(directory);
        for (int i = 0; i < 5; i++) {
                store = fixture_store(directory);
                cr_assert_eq(store_each(store, open_and_close, store), 0);
                store_close(store);
                cr_assert_eq(fingerprint(directory), before);
        }
        layout_free(l);
        fixture_remove(directory);
}
