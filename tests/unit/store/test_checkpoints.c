/* Directories of checkpoints: whole ones, partial ones, which are deleted, and who owns them. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "scene.h"
#include "trace.h"

Test(checkpoints, the_newest_by_time_are_kept_of_one_job_and_user)
{
        struct scene s;

        scene_init(&s, fixture_layout(), 1); /* version 7 at time 1 */
        take_version(&s, 3, 5);
        take_version(&s, 9, 3);
        strcpy(s.manifest.job.name, "job-1");
        cr_assert_eq(mkdirat(s.dir, "job-10", 0700), 0); /* no checkpoint */
        strcpy(s.manifest.job.name, "job");
        s.manifest.job.uid++;
        snapshot_keep(s.dir, &s.manifest, 1);
        cr_assert(exists(&s, "job-7") && exists(&s, "job-3") && exists(&s, "job-9"));
        s.manifest.job.uid--;
        snapshot_keep(s.dir, &s.manifest, 2); /* 9 has just been written: the newest */
        cr_assert(!exists(&s, "job-7") && exists(&s, "job-3") && exists(&s, "job-9"));
        snapshot_keep(s.dir, &s.manifest, 0);
        cr_assert(exists(&s, "job-3") && exists(&s, "job-9") && exists(&s, "job-10"));
        scene_deinit(&s);
}

Test(checkpoints, one_of_the_same_version_is_replaced_and_one_that_is_done_stays)
{
        struct scene s;
        struct fault fault;
        struct stat before, after;

        scene_init(&s, fixture_layout(), 2);
        cr_assert_eq(fstatat(s.dir, "job-7", &before, 0), 0);
        cr_assert_eq(publish(&s, &fault), 0); /* as a second node does */
        cr_assert_eq(fstatat(s.dir, "job-7", &after, 0), 0);
        cr_assert_eq(before.st_ino, after.st_ino);
        take_version(&s, 7, 2);
        cr_assert_eq(fstatat(s.dir, "job-7", &after, 0), 0);
        cr_assert_neq(before.st_ino, after.st_ino);
        cr_assert(!exists(&s, ".job-7.partial"));
        s.manifest.job.uid++;
        cr_assert_eq(publish(&s, &fault), ZERO_EBUSY);
        scene_deinit(&s);
}

Test(checkpoints, partial_ones_are_no_checkpoints_and_the_next_clears_them_away)
{
        struct scene s;
        struct manifest m;
        struct fault fault;
        uint8_t *packed;

        scene_init(&s, fixture_layout(), 2);
        s.manifest.version = 8;
        open_states(&s, 2);
        write_partial(&s);
        CLEANUP(cleanup_close) int dir = open_checkpoint(&s, ".job-8.partial");
        cr_assert_eq(snapshot_open_checkpoint(dir, 0, &m, &packed, &fault), ZERO_EIO);
        s.manifest.version = 9;
        write_partial(&s);
        close_states(&s);
        cr_assert(!exists(&s, ".job-8.partial") && exists(&s, ".job-9.partial"));
        snapshot_partial_remove(s.dir, "job", 9);
        cr_assert(!exists(&s, ".job-9.partial") && exists(&s, "job-7"));
        scene_deinit(&s);
}

/* The process that is killed at any instant: writes version 8, then keeps only the newest. */
static void write_next(struct scene *s)
{
        struct fault fault;

        s->manifest.version = 8;
        s->manifest.created_ms = 2;
        write_partial(s);
        if (publish(s, &fault) == 0)
                snapshot_keep(s->dir, &s->manifest, 1);
        _exit(0);
}

static bool is_whole(const struct scene *s, const char *name)
{
        CLEANUP(cleanup_close) int dir = open_checkpoint(s, name);
        CLEANUP(cleanup_free) uint8_t *packed = NULL;
        struct manifest m;

        return dir >= 0 && snapshot_open_checkpoint(dir, 0, &m, &packed, NULL) == 0;
}

/* A writer that is killed where its n-th system call begins or ends; false if it ended before. */
static bool killed_at(struct scene *s, uint32_t n)
{
        pid_t pid = fork();

        if (pid == 0) {
                trace_me();
                write_next(s);
        }
        if (!trace_begun(pid)) {
                close_states(s);
                scene_deinit(s);
                cr_skip_test("processes cannot be traced here");
        }
        for (uint32_t i = 0; i < n; i++)
                if (!trace_call(pid))
                        return false;
        trace_kill(pid);
        return true;
}

/* Only system calls change files. */
Test(checkpoints, a_writer_killed_anywhere_leaves_the_older_one_or_the_newer_or_both)
{
        bool killed = true, older_alone = false, both = false, newer_alone = false;
        char newer_path[256];
        struct scene s;

        scene_init(&s, fixture_layout(), 2);
        snprintf(newer_path, sizeof(newer_path), "%s/job-8", s.checkpoints);
        for (uint32_t n = 0; killed; n++) {
                open_states(&s, 2);
                killed = killed_at(&s, n);
                close_states(&s);
                bool older = is_whole(&s, "job-7"), newer = is_whole(&s, "job-8");
                cr_assert(older || newer);
                cr_assert(older == exists(&s, "job-7") && newer == exists(&s, "job-8"));
                older_alone |= !newer;
                newer_alone |= !older;
                both |= older && newer;
                if (newer)
                        remove_tree(newer_path);
                if (!older)
                        take_version(&s, 7, 1);
        }
        cr_assert(older_alone && both && newer_alone);
        scene_deinit(&s);
}

static int place(const char *root, const char *path, uint32_t uid)
{
        struct snapshot_place p = { root, path, uid };
        struct fault fault;
        int fd, r = snapshot_place_open(&p, PLACE_MADE, &fd, &fault);

        if (r == 0)
                close(fd);
        return r;
}

Test(checkpoints, others_come_below_the_root_only_and_no_link_leads_out)
{
        char *outside = fixture_directory(), *root = fixture_directory(), path[256];
        uint32_t other = geteuid() + 1;

        snprintf(path, sizeof(path), "%s/link", root);
        cr_assert_eq(symlink(outside, path), 0);
        cr_assert_eq(place(root, path, other), ZERO_EIO);
        cr_assert_eq(place(root, outside, other), ZERO_EPERM);
        cr_assert_eq(place("", outside, other), ZERO_EPERM);
        cr_assert_eq(place("", outside, geteuid()), 0);
        cr_assert_eq(place(root, root, other), 0);
        snprintf(path, sizeof(path), "%s/a/../../x", root);
        cr_assert_eq(place(root, path, other), ZERO_EINVAL);
        snprintf(path, sizeof(path), "%s/./a", root);
        cr_assert_eq(place(root, path, other), ZERO_EINVAL);
        cr_assert_eq(place(root, "a", other), ZERO_EINVAL);
        snprintf(path, sizeof(path), "%sx", root);
        cr_assert_eq(place(root, path, other), ZERO_EPERM);
        snprintf(path, sizeof(path), "%s//a/b/", root);
        cr_assert_eq(place(root, path, other), ZERO_EIO, "a whole path is made");
        snprintf(path, sizeof(path), "%s//a/", root);
        cr_assert_eq(place(root, path, other), 0);
        remove_tree(root);
        remove_tree(outside);
        free(root);
        free(outside);
}

/* A daemon that runs as root may open files that its user may not. */
Test(checkpoints, a_third_users_directory_is_used_as_its_mode_allows)
{
        enum { OWNER = 4711, OTHER = 4712 };
        char *root, theirs[256], below[280];

        if (geteuid())
                cr_skip_test("a directory of another user needs root");
        root = fixture_directory();
        snprintf(theirs, sizeof(theirs), "%s/theirs", root);
        snprintf(below, sizeof(below), "%s/below", theirs);
        cr_assert_eq(mkdir(theirs, 0700) | chown(theirs, OWNER, OWNER), 0);
        cr_assert_eq(place(root, theirs, OTHER), ZERO_EPERM);
        cr_assert_eq(place(root, below, OTHER), ZERO_EPERM);
        cr_assert_eq(chmod(theirs, 0755), 0);
        cr_assert_eq(place(root, theirs, OTHER), ZERO_EPERM);
        cr_assert_eq(place(root, below, OTHER), ZERO_EPERM);
        cr_assert_neq(access(below, F_OK), 0);
        cr_assert_eq(place(root, theirs, OWNER), 0);
        cr_assert_eq(place(root, theirs, 0), 0);
        cr_assert_eq(chmod(theirs, 0777), 0);
        cr_assert_eq(place(root, below, OTHER), 0);
        remove_tree(root);
        free(root);
}

/* ---- manifest ------------------------------------------------------------------------ */

Test(manifest, says_what_it_was_told_and_no_byte_can_change)
{
        struct scene s;
        struct manifest m;
        struct fault fault;
        char *text;
        size_t n;

        scene_init(&s, fixture_layout(), 3);
        cr_assert_eq(manifest_format(&s.manifest, &text), 0);
        n = strlen(text);
        memset(&m, 0, sizeof(m));
        cr_assert_eq(manifest_parse(text, n, &m, &fault), 0, "%s", fault.text);
        cr_assert_eq(memcmp(&m, &s.manifest, sizeof(m)), 0);
        for (size_t i = 0; i < n; i++) {
                for (int bit = 0; bit < 8; bit++) {
                        text[i] ^= (char)(1 << bit);
                        cr_assert_eq(manifest_parse(text, n, &m, &fault), ZERO_EIO);
                        text[i] ^= (char)(1 << bit);
                }
                cr_assert_eq(manifest_parse(text, i, &m, &fault), ZERO_EIO);
        }
        free(text);
        scene_deinit(&s);
}
