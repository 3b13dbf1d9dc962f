/* Whether payloads pass over a bulk path; see fabric_probe.h. */
#include "daemon/fabric/fabric_probe.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* The large one goes by rendezvous, where there is one. */
enum { SMALL = 64, LARGE = 128 << 10, PROBES = 2 };
static const size_t sizes[PROBES] = { SMALL, LARGE };

struct probe {
        struct bulk_peer *bulk;
        void (*ended)(void *arg, bool whole); /* NULL: it has been, or the owner has left */
        void *arg;
        unsigned pending; /* ops */
        bool sent, freed;
        uint8_t out[PROBES][LARGE], in[PROBES][LARGE];
};

static void end(struct probe *probe, bool whole)
{
        if (probe->ended)
                STEAL(probe->ended)(probe->arg, whole);
}

static bool is_whole(const struct probe *probe)
{
        for (int i = 0; i < PROBES; i++) {
                if (memcmp(probe->in[i], probe->out[i], sizes[i]))
                        return false;
        }
        return true;
}

static void on_done(void *arg, int status)
{
        struct probe *probe = arg;

        probe->pending--;
        if (probe->freed && probe->pending == 0)
                free(probe);
        else if (status)
                end(probe, false);
        else if (probe->sent && probe->pending == 0)
                end(probe, is_whole(probe));
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
        struct probe *probe = calloc(1, sizeof *probe);

        if (!probe)
                return -ENOMEM;
        probe->bulk = bulk;
        probe->ended = ended;
        probe->arg = arg;
        fill(probe, token);
        for (uint64_t i = 0; i < PROBES; i++) {
                int r = bulk->ops->expect(bulk, i + 1, probe->in[i], sizes[i], on_done, probe);
                if (r) {
                        probe_free(probe);
                        return r;
                }
                probe->pending++;
        }
        *ret = probe;
        return 0;
}

int probe_send(struct probe *probe)
{
        for (uint64_t i = 0; i < PROBES; i++) {
                int r = probe->bulk->ops->send(probe->bulk, i + 1, probe->out[i], sizes[i], on_done,
                                               probe);
                if (r)
                        return r;
                probe->pending++;
        }
        probe->sent = true;
        return 0;
}

void probe_free(struct probe *probe)
{
        if (!probe)
                return;
        probe->ended = NULL;
        probe->freed = true;
        if (probe->pending == 0)
                free(probe);
}
