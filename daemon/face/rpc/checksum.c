/* A job's checksum: this node's sums, by copy, and the sums over all nodes. */
#include <stdlib.h>
#include <stdio.h>

#include "daemon/face/rpc/query.h"
#include "proto/cleanup.h"

/* NULL: no group of the job has the plane. */
static const char *told_plane(const struct job *job, size_t p)
{
        if (p == CHECKSUM_STEP || p == CHECKSUM_SET)
                return p == CHECKSUM_STEP ? "step" : "set";
        return optimizer_plane_name(job->layout, plane_updated((uint32_t)p));
}

static const char *const copies[PLACEMENT_COPIES] = { "own", "mirror" };

/* ---- of all nodes ---- */

static json_t *hex_of(const uint64_t sum[2])
{
        char hex[33];

        snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)sum[0],
                 (unsigned long long)sum[1]);
        return json_string(hex);
}

/* One copy of the planes of all owners, and their sum. */
static json_t *sums_of(const struct job *job, json_t *const *told, uint32_t copy, json_t **ret_all)
{
        json_t *sums = json_object();
        uint64_t all[2] = { 0, 0 };

        for (size_t p = 0; p < CHECKSUM_PLANES; p++) {
                const char *name = told_plane(job, p);
                uint64_t sum[2] = { 0, 0 };

                for (uint32_t n = 0; n < job->x->cluster->n_nodes; n++) {
                        json_t *part = json_array_get(json_object_get(told[n], copies[copy]), p);

                        for (size_t i = 0; i < 2; i++)
                                sum[i] += (uint64_t)json_integer_value(json_array_get(part, i));
                }
                all[0] += sum[0];
                all[1] += sum[1];
                if (name)
                        json_object_set_new(sums, name, hex_of(sum));
        }
        *ret_all = hex_of(all);
        return sums;
}

bool checksums_agree(const struct job *job, json_t *const *told, json_int_t *ret_version)
{
        json_int_t least = INT64_MAX, most = -1;

        for (uint32_t n = 0; n < job->x->cluster->n_nodes; n++) {
                json_t *versions = json_object_get(told[n], "versions");

                for (size_t i = 0; i < json_array_size(versions); i++) {
                        json_int_t version = json_integer_value(json_array_get(versions, i));

                        least = version < least ? version : least;
                        most = version > most ? version : most;
                }
        }
        *ret_version = most;
        return least >= most;
}

json_t *checksums_together(const struct job *job, json_t *const *told)
{
        json_t *all, *j = json_object(), *own = sums_of(job, told, 0, &all);
        json_int_t version;

        checksums_agree(job, told, &version);
        json_object_set_new(j, "job", json_string(job->name));
        json_object_set_new(j, "version", json_integer(version));
        json_object_set_new(j, "checksum", all);
        json_object_set_new(j, "planes", own);
        if (job->placement.copies > 1) {
                json_t *mirrors = sums_of(job, told, 1, &all);

                json_object_set_new(j, "mirrors_agree", json_boolean(json_equal(own, mirrors)));
                json_object_set_new(j, "mirrors", mirrors);
                json_decref(all);
        }
        return j;
}

/* ---- of this node ---- */

/* Sums over its devices. */
struct checksums {
        struct engine *x;
        uint32_t node, pending;
        uint64_t call;
        bool told[PLACEMENT_COPIES];
        uint64_t total[PLACEMENT_COPIES][CHECKSUM_PLANES][2];
        json_t *versions;
        uint32_t n_parts;
        int status; /* not 0: a device had no memory, or the job goes */
        struct checksum_part {
                struct checksum_asker asker;
                struct checksums *all;
                uint32_t copy;
        } parts[REPLICAS_MAX];
};

static json_t *totals_json(uint64_t (*total)[2])
{
        json_t *j = json_array();

        for (size_t p = 0; p < CHECKSUM_PLANES; p++)
                json_array_append_new(
                        j, json_pack("[I,I]", (json_int_t)total[p][0], (json_int_t)total[p][1]));
        return j;
}

static void checksums_answer(struct checksums *c)
{
        Zero__LinkMessage m = ZERO__LINK_MESSAGE__INIT;
        json_t *sums;

        m.call = c->call;
        if (c->status) {
                answer(c->x, c->node, &m, c->status,
                       c->status == ZERO_ENOMEM ? "out of memory"
                                                : "the job was dropped or the daemon stops");
                return;
        }
        sums = json_object();
        json_object_set(sums, "versions", c->versions);
        for (uint32_t copy = 0; copy < PLACEMENT_COPIES; copy++)
                if (c->told[copy])
                        json_object_set_new(sums, copies[copy], totals_json(c->total[copy]));
        query_answer(c->x, c->node, c->call, sums);
}

static void checksums_part_done(struct checksums *c, int status)
{
        c->status = c->status ? c->status : status;
        if (--c->pending)
                return;
        checksums_answer(c);
        json_decref(c->versions);
        free(c);
}

static void checksum_done(struct checksum_asker *asker, int status, const struct checksum *sum)
{
        struct checksum_part *part = CONTAINER_OF(asker, struct checksum_part, asker);
        struct checksums *c = part->all;
        uint64_t(*total)[2] = c->total[part->copy];

        c->told[part->copy] = true;
        json_array_append_new(c->versions, json_integer((json_int_t)sum->version));
        for (size_t p = 0; p < CHECKSUM_PLANES; p++)
                for (size_t i = 0; i < 2; i++)
                        total[p][i] += sum->sum[p][i];
        checksums_part_done(c, status);
}

void checksum_question(struct engine *x, struct job *job, uint32_t node, const Zero__LinkMessage *m)
{
        struct checksums *c;
        int status;

        if (!replicas_whole(job)) {
                answer(x, node, m, ZERO_EBUSY, "the job's shards are being moved: try again");
                return;
        }
        c = calloc(1, sizeof *c);
        if (!c) {
                answer(x, node, m, ZERO_ENOMEM, "out of memory");
                return;
        }
        *c = (struct checksums){
                .x = x, .node = node, .pending = 1, .call = m->call, .versions = json_array()
        };
        for_replicas (job, h) {
                struct checksum_part *part = &c->parts[c->n_parts++];

                *part = (struct checksum_part){ { .done = checksum_done }, c, h->copy };
                c->pending++;
                status = checksum_ask(h, m->query->version, &part->asker);
                if (status)
                        checksums_part_done(c, status);
        }
        checksums_part_done(c, ZERO_OK);
}
