/*
 * The watched memory is read-only.  A store to it faults: the handler opens the memory and lets the
 * CPU run that instruction alone (trap flag), and the handler of the trap closes it again.
 *
 * A copy in one instruction (rep movs) traps after each of its elements.  The kernel's own stores
 * in a system call do not fault: they fail.  What comes by write() to a mapped file is looked at
 * before the next store.
 */
#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "stores.h"

enum { TRAP_FLAG = 0x100 };

static struct {
        struct iovec parts[STORES_PARTS];
        int n;
        void (*look)(void *arg);
        void *arg;
} watched;

static void protect(int how)
{
        for (int i = 0; i < watched.n; i++) {
                int r = mprotect(watched.parts[i].iov_base, watched.parts[i].iov_len, how);
                assert(r == 0);
        }
}

static bool is_watched(const void *address)
{
        for (int i = 0; i < watched.n; i++)
                if ((uintptr_t)address - (uintptr_t)watched.parts[i].iov_base <
                    watched.parts[i].iov_len)
                        return true;
        return false;
}

static void before_store(int signal_number, siginfo_t *info, void *context)
{
        if (!is_watched(info->si_addr)) {
                signal(signal_number, SIG_DFL); /* a fault of the code: it comes again */
                return;
        }
        watched.look(watched.arg);
        protect(PROT_READ | PROT_WRITE);
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] |= TRAP_FLAG;
}

static void after_store(int signal_number, siginfo_t *info, void *context)
{
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
        protect(PROT_READ);
        watched.look(watched.arg);
}

static void handle(int signal_number, void (*handler)(int, siginfo_t *, void *))
{
        struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
        int r = sigaction(signal_number, &action, NULL);

        assert(r == 0);
}

bool stores_can(void)
{
        return true;
}

void stores_watch(const struct iovec *parts, int n, void (*look)(void *arg), void *arg)
{
        assert(n <= STORES_PARTS);
        for (int i = 0; i < n; i++)
                watched.parts[i] = parts[i];
        watched.n = n;
        watched.look = look;
        watched.arg = arg;
        handle(SIGSEGV, before_store);
        handle(SIGTRAP, after_store);
        protect(PROT_READ);
}

void stores_end(void)
{
        protect(PROT_READ | PROT_WRITE);
        signal(SIGSEGV, SIG_DFL);
        signal(SIGTRAP, SIG_DFL);
        watched.look(watched.arg);
}
