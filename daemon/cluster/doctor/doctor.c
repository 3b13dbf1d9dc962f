/* Examines the node: its links here, the machine on a thread that may block. */
#include "daemon/cluster/doctor/doctor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

const char *const finding_states[FINDING_STATES] = { "fine", "warning", "error" };

enum { EXAMINATIONS_MAX = 64 }; /* more than that wait for a disk */

struct examination {
        struct blocking_work work;
        struct engine *x;
        struct site site;
        struct findings findings;
        doctor_done *done;
        void *arg;
};

static void examine_link(const struct engine *x, const struct site *site, uint32_t node,
                         struct findings *f)
{
        char check[sizeof f->items->check];
        struct fabric_info info;

        fabric_info(x->fabric, node, &info);
        snprintf(check, sizeof check, "link %s", node_name(x, node));
        if (!info.up)
                finding_add(
                        f, check, FINDING_ERROR,
                        "see that zerod runs there, and that no firewall keeps either node from "
                        "the other's port in `peers`",
                        "down: %s", info.link.why);
        else if (strcmp(info.bulk, "tcp") == 0 && strcmp(x->conf->bulk, "auto") == 0 &&
                 site_has_rdma(site))
                finding_add(f, check, FINDING_WARNING,
                            "see what UCX finds there with ucx_info -d, and whether `ucx_tls` or "
                            "`tcp_payloads` leaves that out",
                            "payloads go over tcp (%s), though this node has an RDMA device",
                            info.bulk_detail);
        else
                finding_add(f, check, FINDING_FINE, "", "%s %s", info.bulk, info.bulk_detail);
}

/* Work that a disk or a driver holds up. */
static void examine_lanes(const struct engine *x, struct findings *f)
{
        unsigned late = 0;

        for (enum lane lane = 0; lane < LANES; lane++) {
                struct lane_load load = blocking_load(x->blocking, lane);
                char check[sizeof f->items->check];

                if (load.oldest_ms < LANE_LATE_MS)
                        continue;
                late++;
                snprintf(check, sizeof check, "lane %s", load.lane);
                finding_add(
                        f, check, FINDING_WARNING,
                        "see whether the disk or the driver answers: look at the kernel's log "
                        "and at the mount; other lanes go on meanwhile",
                        "waits for %llu s %s; %u others are at work, and %u wait for their turn",
                        (unsigned long long)load.oldest_ms / 1000, load.oldest, load.working - 1,
                        load.waiting);
        }
        if (!late)
                finding_add(f, "lanes", FINDING_FINE, "", "no disk and no driver is late");
}

static void examination_run(struct blocking_work *work)
{
        struct examination *e = CONTAINER_OF(work, struct examination, work);

        site_examine(&e->site, &e->findings);
}

static void examination_done(struct blocking_work *work)
{
        struct examination *e = CONTAINER_OF(work, struct examination, work);

        e->x->examinations--;
        e->done(e->arg, &e->findings);
        free(e);
}

int doctor_start(struct engine *x, doctor_done *done, void *arg)
{
        struct examination *e = x->examinations < EXAMINATIONS_MAX ? calloc(1, sizeof *e) : NULL;

        if (!e)
                return -ENOMEM;
        e->x = x;
        e->done = done;
        e->arg = arg;
        e->work = (struct blocking_work){ .run = examination_run,
                                          .done = examination_done,
                                          .what = "to examine the node" };
        e->site = (struct site){ "", x->conf, x->cluster->n_nodes == 1, store_used(x->store) };
        for (uint32_t n = 0; n < x->cluster->n_nodes; n++)
                if (n != x->cluster->self)
                        examine_link(x, &e->site, n, &e->findings);
        examine_lanes(x, &e->findings);
        states_examine(x, &e->findings);
        x->examinations++;
        blocking_submit(x->blocking, LANE_FILES, &e->work);
        return 0;
}

static bool doctor_idle(const struct engine *x)
{
        return x->examinations == 0;
}

const struct module doctor_module = { .idle = doctor_idle };
