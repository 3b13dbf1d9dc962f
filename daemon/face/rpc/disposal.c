/*
 * disposal.c - if descriptors may come, a connection with nothing but bytes left to read is closed
 * on the spot, and any other on the thread.  If they cannot, the thread closes connections with
 * unread bytes, because the kernel takes time to free those.  The mutex guards the queue; the
 * thread starts with the first connection and stays.
 */
#include "daemon/face/rpc/disposal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/floor/base/log.h"
#include "proto/cleanup.h"
#include "proto/list.h"

#ifndef SO_PASSRIGHTS /* newer than the headers of Debian 12 */
#define SO_PASSRIGHTS 83
#endif

enum {
        READ_BYTES = 65536,
        READS_MAX = 64,       /* a socket holds less */
        DESCRIPTORS_MAX = 253 /* that one message carries, by the kernel's SCM_MAX_FD */
};

struct holder {
        struct list link;
        uid_t uid;
        uint32_t n_waiting;
};

struct disposal {
        struct list link;
        struct holder *holder;
        int fd;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER;
static struct list queue = { &queue, &queue };
static struct list holders = { &holders, &holders };
static bool running;
static _Atomic uint32_t n_waiting;

void descriptors_refuse(int listener)
{
        int off = 0;

        setsockopt(listener, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off);
}

bool descriptors_may_come(int fd)
{
        int on = 1;
        socklen_t size = sizeof on;

        return getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &on, &size) || on;
}

/* With the mutex held. */
static struct holder *holder_find(uid_t uid)
{
        list_for_each (&holders, item) {
                struct holder *holder = CONTAINER_OF(item, struct holder, link);

                if (holder->uid == uid)
                        return holder;
        }
        return NULL;
}

uint32_t disposal_waiting(uid_t uid)
{
        const struct holder *holder;
        uint32_t n;

        pthread_mutex_lock(&mutex);
        holder = holder_find(uid);
        n = holder ? holder->n_waiting : 0;
        pthread_mutex_unlock(&mutex);
        return n;
}

bool disposal_full(void)
{
        struct rlimit files;

        return getrlimit(RLIMIT_NOFILE, &files) == 0 && n_waiting >= files.rlim_cur / 2;
}

/* A socket that lingers would hold up the others. */
static void close_passed(const struct cmsghdr *c)
{
        static const struct linger no_linger = { 0 };
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        for (size_t i = 0; c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && i < n;
             i++) {
                int fd;

                memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &no_linger, sizeof no_linger);
                close(fd);
        }
}

/* On the thread: takes the descriptors out, then closes the connection. */
static void dispose(int fd)
{
        char bytes[4096];
        union {
                struct cmsghdr align;
                char space[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
        } control;
        struct iovec iov = { bytes, sizeof bytes };

        for (;;) {
                struct msghdr m = { .msg_iov = &iov,
                                    .msg_iovlen = 1,
                                    .msg_control = control.space,
                                    .msg_controllen = sizeof control.space };

                if (recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
                        break;
                for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
                        close_passed(c);
        }
        close(fd);
}

/* With the mutex held. */
static void disposal_free(struct disposal *d)
{
        n_waiting--;
        if (--d->holder->n_waiting == 0) {
                list_remove(&d->holder->link);
                free(d->holder);
        }
        free(d);
}

static void *disposal_main(void *arg)
{
        pthread_mutex_lock(&mutex);
        for (;;) {
                struct disposal *d;

                while (list_empty(&queue))
                        pthread_cond_wait(&wanted, &mutex);
                d = CONTAINER_OF(queue.next, struct disposal, link);
                list_remove(&d->link);
                pthread_mutex_unlock(&mutex);
                dispose(d->fd);
                pthread_mutex_lock(&mutex);
                disposal_free(d);
        }
        return NULL;
}

/* With the mutex held. */
static int disposal_start(void)
{
        pthread_t thread;
        sigset_t all, old;
        int r = 0;

        if (running)
                return 0;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        r = pthread_create(&thread, NULL, disposal_main, NULL);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r)
                return -r;
        pthread_setname_np(thread, "disposal");
        pthread_detach(thread);
        running = true;
        return 0;
}

/* With the mutex held.  NULL: out of memory. */
static struct holder *holder_of(uid_t uid)
{
        struct holder *holder = holder_find(uid);

        if (holder)
                return holder;
        holder = calloc(1, sizeof *holder);
        if (!holder)
                return NULL;
        holder->uid = uid;
        list_insert(&holders, &holder->link);
        return holder;
}

/* With the mutex held. */
static int disposal_queue(int fd, uid_t uid)
{
        CLEANUP(cleanup_free) struct disposal *d = malloc(sizeof *d);
        struct holder *holder = d ? holder_of(uid) : NULL;

        if (!holder)
                return -ENOMEM;
        d->fd = fd;
        d->holder = holder;
        holder->n_waiting++;
        n_waiting++;
        list_insert(&queue, &STEAL(d)->link);
        pthread_cond_signal(&wanted);
        return 0;
}

/* -ENOMEM, -EAGAIN: there is no thread. */
static int disposal_hand_over(int fd, uid_t uid)
{
        int r;

        pthread_mutex_lock(&mutex);
        r = disposal_start();
        if (!r)
                r = disposal_queue(fd, uid);
        pthread_mutex_unlock(&mutex);
        return r;
}

/* Reads what is left.  True: it was bytes only. */
static bool only_bytes_left(int fd)
{
        char bytes[READ_BYTES];
        struct iovec iov = { bytes, sizeof bytes };

        for (int i = 0; i < READS_MAX; i++) {
                struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
                ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_PEEK);

                if (n <= 0)
                        return n == 0 || errno != EINTR;
                if (m.msg_flags & MSG_CTRUNC)
                        return false;
                recv(fd, bytes, (size_t)n, MSG_DONTWAIT);
        }
        return false;
}

void disposal_close(int fd, uid_t uid)
{
        int unread = 0, r;

        if (!descriptors_may_come(fd)) {
                ioctl(fd, FIONREAD, &unread);
                if (unread == 0 || disposal_hand_over(fd, uid))
                        close(fd);
                return;
        }
        shutdown(fd, SHUT_RDWR); /* nothing more can come */
        if (only_bytes_left(fd)) {
                close(fd);
                return;
        }
        r = disposal_hand_over(fd, uid);
        if (r) /* the process has lost a descriptor, but the loop goes on */
                log_error("a connection with descriptors of a client stays open: %s", strerror(-r));
}
