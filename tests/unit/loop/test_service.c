/* Messages to the service manager and sockets from it, with a socket in its place. */
#include <criterion/criterion.h>

#include "daemon/floor/loop/service.h"

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static uv_loop_t loop;
static struct service *service;
static int manager;

/* An abstract address, so that no file is left. */
static struct sockaddr_un address_of(const char *purpose, socklen_t *ret_size)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "zerod-test-%s-%d",
                         purpose, getpid());

        *ret_size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
        return address;
}

static int bound(int type, const char *purpose)
{
        socklen_t size;
        struct sockaddr_un address = address_of(purpose, &size);
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

        cr_assert_eq(bind(fd, (struct sockaddr *)&address, size), 0);
        return fd;
}

static void setup(void)
{
        char name[128];

        manager = bound(SOCK_DGRAM, "manager");
        snprintf(name, sizeof(name), "@zerod-test-manager-%d", getpid());
        setenv("NOTIFY_SOCKET", name, 1);
        unsetenv("WATCHDOG_USEC");
        unsetenv("WATCHDOG_PID");
        uv_loop_init(&loop);
}

static void teardown(void)
{
        service_close(service);
        uv_run(&loop, UV_RUN_DEFAULT);
        cr_assert_eq(uv_loop_close(&loop), 0);
        close(manager);
}

static const char *heard(void)
{
        static char text[1024];
        struct pollfd p = { manager, POLLIN, 0 };
        ssize_t n = poll(&p, 1, 0) > 0 ? recv(manager, text, sizeof(text) - 1, 0) : 0;

        text[n > 0 ? n : 0] = '\0';
        return text;
}

TestSuite(service, .init = setup, .fini = teardown);

Test(service, tells_its_states)
{
        cr_assert_eq(service_new(&loop, &service), 0);
        service_ready(service);
        cr_assert_str_eq(heard(), "READY=1");
        service_reloading(service);
        cr_assert_str_eq(heard(), "RELOADING=1");
        service_stopping(service);
        cr_assert_str_eq(heard(), "STOPPING=1");
        service_stop_takes(90);
        cr_assert_str_eq(heard(), "EXTEND_TIMEOUT_USEC=90000000");
}

static void on_deadline(uv_timer_t *timer)
{
        cr_assert(false, "the watchdog was not answered");
}

Test(service, answers_the_watchdog_at_half_its_interval)
{
        static uv_timer_t end; /* closed in the teardown's loop */
        int beats = 0;

        setenv("WATCHDOG_USEC", "40000", 1);
        cr_assert_eq(service_new(&loop, &service), 0);
        uv_timer_init(&loop, &end); /* keeps the loop alive: the watchdog does not */
        uv_timer_start(&end, on_deadline, 30000, 0);
        uv_update_time(&loop);
        uint64_t begin = uv_now(&loop);
        while (beats < 5) {
                uv_run(&loop, UV_RUN_ONCE);
                beats += strcmp(heard(), "WATCHDOG=1") == 0;
        }
        cr_assert_geq(uv_now(&loop) - begin, 4 * 20 - 1);
        uv_close((uv_handle_t *)&end, NULL);
}

Test(service, silent_where_no_watchdog_waits)
{
        cr_assert_eq(service_new(&loop, &service), 0);
        cr_assert_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
        cr_assert_str_eq(heard(), "");
}

Test(service, watchdog_of_another_process_is_not_ours)
{
        setenv("WATCHDOG_USEC", "40000", 1);
        setenv("WATCHDOG_PID", "1", 1);
        cr_assert_eq(service_new(&loop, &service), 0);
        cr_assert_eq(uv_run(&loop, UV_RUN_DEFAULT), 0);
        cr_assert_str_eq(heard(), "");
}

/* Puts fds at 3, 4, ... as a service manager does.  No code between uses descriptors. */
static void pass(const int *fds, int n)
{
        char text[16];
        int spare[4];

        for (int i = 0; i < n; i++)
                spare[i] = fcntl(fds[i], F_DUPFD, 100);
        for (int i = 0; i < n; i++)
                cr_assert_eq(dup2(spare[i], 3 + i), 3 + i);
        snprintf(text, sizeof(text), "%d", n);
        setenv("LISTEN_FDS", text, 1);
        snprintf(text, sizeof(text), "%d", getpid());
        setenv("LISTEN_PID", text, 1);
}

/* In a child: descriptors 3 and up belong to the loop and to Criterion. */
#define IN_CHILD(expected, ...)                                                                 \
        do {                                                                                    \
                pid_t child = fork();                                                           \
                int status;                                                                     \
                if (child == 0) {                                                               \
                        int fds[] = { __VA_ARGS__ };                                            \
                        pass(fds, sizeof(fds) / sizeof(fds[0]));                                \
                        int first = service_socket(), second = service_socket();                \
                        bool once = second == -1 && !getenv("LISTEN_FDS");                      \
                        bool closed_on_exec = first < 0 || fcntl(first, F_GETFD) == FD_CLOEXEC; \
                        _exit(first == (expected) && once && closed_on_exec ? 0 : 1);           \
                }                                                                               \
                cr_assert_eq(waitpid(child, &status, 0), child);                                \
                cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);                       \
        } while (0)

Test(service, no_socket_was_passed)
{
        cr_assert_eq(service_socket(), -1);
}

Test(service, the_passed_socket)
{
        int fd = bound(SOCK_STREAM, "listen");

        cr_assert_eq(listen(fd, 1), 0);
        IN_CHILD(3, fd);
        close(fd);
}

Test(service, other_descriptors_are_refused)
{
        int listening = bound(SOCK_STREAM, "listen"), silent = bound(SOCK_STREAM, "silent");
        int file = open("/dev/null", O_RDWR | O_CLOEXEC);

        cr_assert_eq(listen(listening, 1), 0);
        IN_CHILD(-1, file);
        IN_CHILD(-1, silent);
        IN_CHILD(5, file, silent, listening, listening);
        close(listening);
        close(silent);
        close(file);
}
