/*
 * The trainers' half: their view of a window is ordinary memory, and an event is a word with the
 * time at which it is done.  Handles name descriptors of the process that made them, so a killed
 * process leaves nothing behind.
 *
 * CUDA leaves undefined what another process finds in what its maker has freed.  So whoever opens a
 * handle locks the file behind it for as long as it is open, and a maker that frees it then dies.
 */
#include "tests/support/fake_gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EVENT_MAGIC UINT64_C(0x746e657645657a)

struct event_word {
        uint64_t magic;
        _Atomic uint64_t done_ns; /* CLOCK_MONOTONIC; 0: never recorded, which counts as done */
};

struct event {
        struct event_word *word;
        int fd;
        bool made; /* by this process, which did not open it */
};

struct mapping {
        struct mapping *next;
        void *memory;
        uint64_t bytes;
        int protection;
        int fd; /* of a handle, or -1 */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct mapping *mappings;

static uint64_t now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* A descriptor of the handle's, of at least that many bytes; -errno. */
static int open_handle(const uint8_t handle[ZERO_GPU_HANDLE], uint64_t bytes)
{
        struct stat st;
        int fd;

        if (memcmp(handle, "/proc/", 6) || !memchr(handle, 0, ZERO_GPU_HANDLE))
                return -EINVAL;
        fd = open((const char *)handle, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                return -EINVAL;
        if (fstat(fd, &st) || st.st_size < (off_t)bytes || flock(fd, LOCK_SH | LOCK_NB)) {
                close(fd);
                return -EINVAL;
        }
        return fd;
}

void fake_must_be_closed(int fd, const char *what)
{
        if (flock(fd, LOCK_EX | LOCK_NB))
                fake_die("%s is freed while another process has it open", what);
}

/* Takes the descriptor over in any case. */
static int event_map(int fd, struct event **ret)
{
        struct event *e = calloc(1, sizeof *e);

        if (e)
                e->word = mmap(NULL, sizeof *e->word, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (!e || e->word == MAP_FAILED) {
                free(e);
                close(fd);
                return -ENOMEM;
        }
        e->fd = fd;
        *ret = e;
        return 0;
}

int fake_event_open(const uint8_t handle[ZERO_GPU_HANDLE], void **ret_event)
{
        int fd = open_handle(handle, sizeof(struct event_word)), r;
        struct event *e;

        fake_off_loop("event_open");
        fake_pass_gate("FAKE_GPU_EVENT_GATE");
        fake_chosen("event_open");
        if (fd >= 0 && fake_setting("FAKE_GPU_NO_EVENTS", 0)) {
                close(fd);
                return -EIO; /* as CUDA says it */
        }
        if (fd < 0)
                return fd;
        r = event_map(fd, &e);
        if (r < 0)
                return r;
        if (e->word->magic != EVENT_MAGIC) {
                fake_event_free(e);
                return -EINVAL;
        }
        *ret_event = e;
        return 0;
}

int fake_event_done(void *event)
{
        const struct event *e = event;

        fake_off_loop("event_done");
        return fake_state() < 0 ? fake_state() : e->word->done_ns <= now_ns();
}

void fake_event_free(void *event)
{
        struct event *e = event;

        if (!e)
                return;
        fake_off_loop("event_free");
        if (e->made)
                fake_must_be_closed(e->fd, "an event");
        close(e->fd);
        munmap(e->word, sizeof *e->word);
        free(e);
}

/* ---- the trainers' table --------------------------------------------------------- */

static int check(int ordinal)
{
        if (fake_gpus() == 0)
                return -ENODEV;
        return ordinal < 0 || ordinal >= (int)fake_gpus() ? -EINVAL : 0;
}

static int client_uuid(int ordinal, uint8_t ret_uuid[ZERO_GPU_UUID])
{
        int r = check(ordinal);

        if (r == 0)
                fake_uuid((uint32_t)ordinal, ret_uuid);
        return r;
}

static int client_map(int ordinal, int fd, const uint8_t handle[ZERO_GPU_HANDLE], uint64_t bytes,
                      bool writable, void **ret_memory)
{
        struct mapping *m;
        int own = -1, r = check(ordinal);
        struct stat st;

        if (r < 0)
                return r;
        if (fd < 0 && (own = fd = open_handle(handle, bytes)) < 0)
                return fd;
        m = fstat(fd, &st) || st.st_size != (off_t)bytes ? NULL : malloc(sizeof *m);
        if (m) {
                m->bytes = bytes;
                m->fd = own;
                m->protection = PROT_READ;
                if (writable || fake_setting("FAKE_GPU_WRITABLE", 0))
                        m->protection |= PROT_WRITE;
                m->memory = mmap(NULL, bytes, m->protection, MAP_SHARED, fd, 0);
        }
        if (!m || m->memory == MAP_FAILED) {
                if (own >= 0)
                        close(own);
                free(m);
                return -EINVAL;
        }
        pthread_mutex_lock(&mutex);
        m->next = mappings;
        mappings = m;
        pthread_mutex_unlock(&mutex);
        *ret_memory = m->memory;
        return 0;
}

/* Under the mutex. */
static struct mapping **find(const void *memory)
{
        struct mapping **at = &mappings;

        while (*at && (*at)->memory != memory)
                at = &(*at)->next;
        return at;
}

static int client_remap(void *memory, int fd)
{
        const struct mapping *m;
        struct stat st;

        pthread_mutex_lock(&mutex);
        m = *find(memory);
        pthread_mutex_unlock(&mutex);
        if (!m)
                fake_die("%p is not mapped", memory);
        if (fstat(fd, &st) || st.st_size != (off_t)m->bytes)
                return -EINVAL;
        return mmap(memory, m->bytes, m->protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED
                       ? -EIO
                       : 0;
}

static void client_unmap(void *memory)
{
        struct mapping **at, *m;

        if (!memory)
                return;
        fake_pass_gate("FAKE_GPU_UNMAP_GATE");
        pthread_mutex_lock(&mutex);
        at = find(memory);
        m = *at;
        if (m)
                *at = m->next;
        pthread_mutex_unlock(&mutex);
        if (!m)
                fake_die("%p is not mapped", memory);
        munmap(m->memory, m->bytes);
        if (m->fd >= 0)
                close(m->fd);
        free(m);
}

/* What the copy that comes late needs. */
struct late {
        void *dst;
        uint64_t bytes, ms;
        uint8_t src[];
};

static void *copy_late(void *arg)
{
        struct late *late = arg;

        usleep((useconds_t)(late->ms * 1000));
        memcpy(late->dst, late->src, late->bytes);
        free(late);
        return NULL;
}

/*
 * Done at once; or, as by a GPU that is behind, after FAKE_GPU_COPY_MS.  The events behind the copy
 * must be later still (FAKE_GPU_DELAY_MS).
 */
static int client_copy(int ordinal, void *dst, const void *src, uint64_t bytes, void *stream)
{
        struct late *late;
        pthread_t thread;
        int r = check(ordinal);

        if (r < 0)
                return r;
        late = malloc(sizeof *late + bytes);
        if (!late)
                return -ENOMEM;
        late->dst = dst;
        late->bytes = bytes;
        late->ms = fake_setting("FAKE_GPU_COPY_MS", 0);
        memcpy(late->src, src, bytes);
        if (late->ms && pthread_create(&thread, NULL, copy_late, late) == 0)
                pthread_detach(thread);
        else
                copy_late(late);
        return 0;
}

static int client_pin(int ordinal, void *memory, uint64_t bytes)
{
        int r = check(ordinal);

        if (r == 0 && ((uintptr_t)memory % 4096 || bytes % 4096))
                fake_die("%p is not whole pages", memory);
        return r || !fake_setting("FAKE_GPU_NO_PIN", 0) ? r : -ENOMEM;
}

static void client_unpin(int ordinal, void *memory)
{
}

static int client_event_new(int ordinal, uint8_t ret_handle[ZERO_GPU_HANDLE], void **ret_event)
{
        struct event *e;
        int fd, r = check(ordinal);

        if (r < 0)
                return r;
        fd = memfd_create("zerod-fake-event", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, sizeof *e->word))
                fake_die("an event: %s", strerror(errno));
        r = event_map(fd, &e);
        if (r < 0)
                return r;
        e->made = true;
        e->word->magic = EVENT_MAGIC;
        *ret_event = e;
        if (fake_setting("FAKE_GPU_EVENTS_ALONE", 0))
                return 1;
        memset(ret_handle, 0, ZERO_GPU_HANDLE);
        snprintf((char *)ret_handle, ZERO_GPU_HANDLE, "/proc/%d/fd/%d", getpid(), fd);
        return 0;
}

__attribute__((visibility("default"))) fake_event_until_fn fake_event_until;

void fake_event_until(void *event, uint64_t done_ns)
{
        struct event *e = event;

        e->word->done_ns = done_ns;
}

static int client_event_record(void *event, void *stream)
{
        struct event *e = event;

        fake_finish_all(); /* for that is what the event stands for */
        e->word->done_ns = now_ns() + fake_setting("FAKE_GPU_DELAY_MS", 0) * 1000000;
        return 0;
}

__attribute__((visibility("default"))) zero_gpu_fn zero_gpu_client;

const struct zero_gpu_client *zero_gpu_client(void)
{
        static struct zero_gpu_client table = {
                .uuid = client_uuid,
                .map = client_map,
                .remap = client_remap,
                .unmap = client_unmap,
                .copy = client_copy,
                .pin = client_pin,
                .unpin = client_unpin,
                .event_new = client_event_new,
                .event_record = client_event_record,
                .event_done = fake_event_done,
                .event_free = fake_event_free,
        };

        table.abi_version = (uint32_t)fake_setting("FAKE_GPU_CLIENT_ABI", ZERO_GPU_ABI_VERSION);
        return &table;
}
