/* Whether payloads pass over a bulk path; see probe.h. */
#include "daemon/fabric/probe.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/compute/device/segment/segment.h"
#include "proto/cleanup.h"

/* The large probe goes by rendezvous where the path has rendezvous. */
enum { SMALL = 64, LARGE = 64 << 10, PROBES = 2 };
static const size_t sizes[PROBES] = { SMALL, LARGE };
enum { GPU_TRANSFER = PROBES + 1 };
_Static_assert((int)LARGE >= (int)BULK_AWAY_MIN, "the large probe may lie in GPU memory");

struct probe {
        struct bulk_peer *bulk;
        void (*ended)(void *arg, bool whole); /* NULL: was called, or the owner is gone */
        void *arg;
        unsigned pending; /* ops */
        bool sent, freed;
        uint8_t *gpu; /* the probe to send, then the one to come; NULL: GPU memory is not probed */
        bool gpu_void;
        uint8_t out[PROBES][LARGE], in[PROBES][LARGE];
};

static void end(struct probe *probe, bool whole)
{
        if (probe->ended)
                STEAL(probe->ended)(probe->arg, whole);
}

static bool gpu_is_whole(struct probe *probe)
{
        if (!probe->gpu || probe->gpu_void)
                return true;
        place_ops()->copy(probe->in[1], probe->gpu + LARGE, LARGE);
        return memcmp(probe->in[1], probe->out[1], LARGE) == 0;
}

static bool is_whole(const struct probe *probe)
{
        for (int i = 0; i < PROBES; i++) {
                if (memcmp(probe->in[i], probe->out[i], sizes[i]))
                        return false;
        }
        return true;
}

static void delete (struct probe *probe)
{
        place_free(probe->gpu);
        munmap(probe, sizeof *probe);
}

static void on_done(void *arg, int status)
{
        struct probe *probe = arg;

        probe->pending--;
        if (probe->freed && probe->pending == 0)
                delete (probe);
        else if (status)
                end(probe, false);
        else if (probe->sent && probe->pending == 0)
                end(probe, is_whole(probe) && gpu_is_whole(probe));
}

static void on_gpu_landed(void *arg, int status)
{
        struct probe *probe = arg;

        on_done(probe, probe->gpu_void ? 0 : status);
}

/*
 * UCX treats memory that other processes may map unlike the driver's ordinary memory, and may lose
 * what it can do with the latter alone.  Windows and served parameters are of the former kind: so
 * is the probe, unless the driver lets no other process map any.
 */
static int gpu_new(struct probe *probe)
{
        static const char what[] = "probe of a bulk path";
        struct segment shared;
        struct fault fault;
        void *memory;
        int r = segment_new_away(place_nth(0), what, (uint64_t)2 * LARGE, &shared, &fault);

        if (r == 0)
                memory = shared.data;
        else if (r == ZERO_EGPU)
                r = place_alloc(place_nth(0), (uint64_t)2 * LARGE, what, &memory, &fault);
        if (r)
                return -ENOBUFS;
        probe->gpu = memory;
        return 0;
}

/* The probe in GPU memory has the same bytes as the large one. */
static int expect_gpu(struct probe *probe)
{
        struct bulk_peer *bulk = probe->bulk;
        int r;

        place_ops()->copy(probe->gpu, probe->out[1], LARGE);
        place_ops()->zero(probe->gpu + LARGE, LARGE);
        r = bulk->ops->expect(bulk, GPU_TRANSFER, probe->gpu + LARGE, LARGE, on_gpu_landed, probe);
        probe->pending += r == 0;
        return r;
}

/* Both sides send the same bytes. */
static void fill(struct probe *probe, uint64_t token)
{
        uint8_t seed[randombytes_SEEDBYTES] = { 0 };

        memcpy(seed, &token, sizeof token);
        for (int i = 0; i < PROBES; i++) {
                seed[sizeof token] = (uint8_t)i;
                randombytes_buf_deterministic(probe->out[i], sizes[i], seed);
        }
}

int probe_new(struct bulk_peer *bulk, uint64_t token, void (*ended)(void *arg, bool whole),
              void *arg, struct probe **ret)
{
        /* mmap(), so that the heap does not keep the memory of all peers' probes */
        struct probe *probe = mmap(NULL, sizeof *probe, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        int r;

        if (probe == MAP_FAILED)
                return -ENOMEM;
        probe->bulk = bulk;
        probe->ended = ended;
        probe->arg = arg;
        r = bulk->gpu ? gpu_new(probe) : 0;
        fill(probe, token);
        for (uint64_t i = 0; i < PROBES && r == 0; i++) {
                r = bulk->ops->expect(bulk, i + 1, probe->in[i], sizes[i], on_done, probe);
                probe->pending += r == 0;
        }
        if (r == 0 && bulk->gpu)
                r = expect_gpu(probe);
        if (r) {
                probe_free(probe);
                return r;
        }
        *ret = probe;
        return 0;
}

void probe_without_gpu(struct probe *probe)
{
        probe->gpu_void = true;
        probe->bulk->ops->forget(probe->bulk, GPU_TRANSFER);
}

static int send_one(struct probe *probe, uint64_t transfer, const void *p, size_t n)
{
        int r = probe->bulk->ops->send(probe->bulk, transfer, p, n, on_done, probe);

        probe->pending += r == 0;
        return r;
}

int probe_send(struct probe *probe)
{
        int r = 0;

        for (uint64_t i = 0; i < PROBES && r == 0; i++)
                r = send_one(probe, i + 1, probe->out[i], sizes[i]);
        if (r == 0 && probe->gpu && !probe->gpu_void)
                r = send_one(probe, GPU_TRANSFER, probe->gpu, LARGE);
        probe->sent = r == 0;
        return r;
}

void probe_free(struct probe *probe)
{
        if (!probe)
                return;
        probe->ended = NULL;
        probe->freed = true;
        if (probe->pending == 0)
                delete (probe);
}
