/* Planes read and written by clients, over any number of owners; one step against a reference. */
#include <math.h>
#include <string.h>

#include "daemon/store/file.h"
#include "daemon/step/tensors/access.h"
#include "cases.h"
#include "check.h"
#include "listening.h"
#include "proto/cleanup.h"
#include "training.h"

/* ---- a client that reads and writes ---- */

struct client {
        struct net *net;
        uint32_t node;
        struct push_window *window;
        struct request request;
        bool done;
        int status;
        char text[480];
};

static void client_finish(struct request *r, int status, const char *text)
{
        struct client *c = CONTAINER_OF(r, struct client, request);

        c->done = true;
        c->status = status;
        snprintf(c->text, sizeof c->text, "%s", text);
}

/* Nodes that the job does not need may hear of the job after its start. */
static bool job_is_there(void *arg)
{
        const struct client *c = arg;
        const struct job *job = net_job(c->net, c->node, "zoo");

        return job && !job->opening;
}

static void client_open(struct client *c, struct net *net, uint32_t node)
{
        *c = (struct client){ .net = net, .node = node };
        net_wait(net, job_is_there, c, "the node to have the job");
        CHECK(push_window_new(&c->window, NULL) == 0);
}

static bool client_done(void *arg)
{
        return ((struct client *)arg)->done;
}

static void client_begin(struct client *c, bool put, uint32_t tensor, enum zero_plane plane,
                         uint64_t first, uint64_t count)
{
        struct engine *x = &c->net->nodes[c->node].x;
        struct job *job = net_job(c->net, c->node, "zoo");
        Zero__Access m = ZERO__ACCESS__INIT;
        struct fault fault = { 0 };
        int r;

        m.tensor = tensor;
        m.plane = plane;
        m.first = first;
        m.count = count;
        c->done = false;
        c->request = (struct request){ .finish = client_finish };
        request_begin(&x->requests, &c->request, uv_now(x->loop), 10000);
        r = access_start(job, c->window, &m, put, 10000, &c->request, &fault);
        if (r)
                request_end(&c->request, r, "%s", fault.text);
        if (put && job->placement.copies > 1) /* a client that breaks its promise */
                memset(c->window->segment.data, 0xff, c->window->transfer_bytes);
}

static int client_access(struct client *c, bool put, uint32_t tensor, enum zero_plane plane,
                         uint64_t first, uint64_t count)
{
        client_begin(c, put, tensor, plane, first, count);
        net_wait(c->net, client_done, c, "a plane");
        if (put) /* the memory is the client's again */
                memset(c->window->segment.data, 0xff, c->window->transfer_bytes);
        return c->status;
}

static void get(struct client *c, uint32_t tensor, enum zero_plane plane, uint64_t first,
                uint64_t count, void *dst, size_t size)
{
        CHECK(client_access(c, false, tensor, plane, first, count) == 0, "%s", c->text);
        memcpy(dst, c->window->segment.data, count * size);
}

static void put(struct client *c, uint32_t tensor, enum zero_plane plane, uint64_t first,
                uint64_t count, const void *src, size_t size)
{
        memcpy(c->window->segment.data, src, count * size);
        CHECK(client_access(c, true, tensor, plane, first, count) == 0, "%s", c->text);
}

static void client_close(struct client *c)
{
        push_window_unref(c->window);
}

/* ---- every plane over owners ---- */

static float value(uint32_t tensor, enum zero_plane plane, uint64_t i)
{
        return trainer_gradient(plane, tensor, 0, 0, i) + (float)plane;
}

static void put_tensor(struct client *c, const layout *l, uint32_t tensor, enum zero_plane plane)
{
        const struct layout_tensor *t = &l->tensors[tensor];
        CLEANUP(cleanup_free) float *values = malloc((t->elements + 1) * sizeof *values);
        uint64_t half = t->elements / 3;

        CHECK(values);
        for (uint64_t i = 0; i < t->elements; i++)
                values[i] = value(tensor, plane, i);
        put(c, tensor, plane, half, t->elements - half, values + half, sizeof *values);
        put(c, tensor, plane, 0, half, values, sizeof *values);
}

static void check_tensor(struct client *c, const layout *l, uint32_t tensor, enum zero_plane plane)
{
        const struct layout_tensor *t = &l->tensors[tensor];
        CLEANUP(cleanup_free) float *values = malloc((t->elements + 1) * sizeof *values);

        CHECK(values);
        get(c, tensor, plane, 0, t->elements, values, sizeof *values);
        for (uint64_t i = 0; i < t->elements; i++)
                CHECK(values[i] == value(tensor, plane, i), "tensor %u, plane %d, element %llu: %g",
                      tensor, plane, (unsigned long long)i, (double)values[i]);
}

/* Serve is master, rounded. */
static void check_serve(struct client *c, const layout *l, uint32_t tensor)
{
        const struct layout_tensor *t = &l->tensors[tensor];
        enum zero_dtype dtype = l->groups[t->group].dtype;
        CLEANUP(cleanup_free) float *values = malloc((t->elements + 1) * sizeof *values);
        CLEANUP(cleanup_free) char *rounded = malloc(t->elements * 4 + 4);

        CHECK(values && rounded);
        for (uint64_t i = 0; i < t->elements; i++)
                values[i] = value(tensor, ZERO_PLANE_MASTER, i);
        device_host("scalar")->cast(dtype, rounded, ZERO_FP32, values, t->elements);
        get(c, tensor, ZERO_PLANE_SERVE, 0, t->elements, values, dtype_bytes(dtype, 1));
        CHECK(memcmp(values, rounded, dtype_bytes(dtype, t->elements)) == 0, "tensor %u", tensor);
}

static const struct state *held(struct session *s, uint32_t owner, uint32_t copy)
{
        const struct placement *p = &s->net.nodes[0].x.placement;
        uint32_t node = holder_node(p, holder_of(p, owner, copy));

        return replica_of_copy(net_job(&s->net, node, "zoo"), owner, copy)->state;
}

static void copies_are_equal(struct session *s)
{
        const struct placement *p = &s->net.nodes[0].x.placement;

        for (uint32_t o = 0; p->copies > 1 && o < p->n_owners; o++) {
                const struct state *own = held(s, o, 0), *mirror = held(s, o, 1);

                CHECK(own->puts && own->puts == mirror->puts, "owner %u", o);
                CHECK(memcmp(own->in->master, mirror->in->master,
                             own->plan->master_elements * sizeof(float)) == 0,
                      "owner %u", o);
        }
}

static void each_plane_is_what_was_put(uint32_t owners, bool mirror)
{
        static const enum zero_plane planes[] = { ZERO_PLANE_MASTER, ZERO_PLANE_MOMENT1,
                                                  ZERO_PLANE_MOMENT2 };
        struct training t = training_default();
        struct session s;
        struct client writer, reader;

        t.net = (struct net_options){
                .nodes = 5, .owners = owners, .mirror = mirror, .delay_ms = 1
        };
        session_open(&s, &t);
        session_attach(&s);
        client_open(&writer, &s.net, 4);
        client_open(&reader, &s.net, 1);
        for (uint32_t i = 0; i < s.layout->n_tensors; i++)
                for (int p = 0; p < (s.layout->tensors[i].frozen ? 1 : 3); p++)
                        put_tensor(&writer, s.layout, i, planes[p]);
        for (uint32_t i = 0; i < s.layout->n_tensors; i++) {
                for (int p = 0; p < (s.layout->tensors[i].frozen ? 1 : 3); p++)
                        check_tensor(&reader, s.layout, i, planes[p]);
                check_serve(&reader, s.layout, i);
        }
        copies_are_equal(&s);
        client_close(&writer);
        client_close(&reader);
        session_close(&s);
}

static void planes_over_owners(void)
{
        each_plane_is_what_was_put(1, false);
        each_plane_is_what_was_put(2, false);
        each_plane_is_what_was_put(5, false);
        each_plane_is_what_was_put(5, true);
}

static void the_step_count_is_kept_by_every_owner(void)
{
        struct training t = training_default();
        struct session s;
        struct client c;
        uint64_t steps = 41;

        t.net = (struct net_options){ .nodes = 3, .owners = 3 };
        session_open(&s, &t);
        session_attach(&s);
        client_open(&c, &s.net, 2);
        put(&c, 0, ZERO_PLANE_STEP, 0, 1, &steps, sizeof steps);
        session_program(&s, 1);
        session_run(&s);
        net_checksum(&s.net, "zoo"); /* the update is over then */
        for (uint32_t n = 0; n < 3; n++) {
                const struct state *state = net_own(net_job(&s.net, n, "zoo"))->state;

                CHECK(state->tensor_step[0] == 42, "owner %u: %llu", n,
                      (unsigned long long)state->tensor_step[0]);
        }
        get(&c, 0, ZERO_PLANE_STEP, 0, 1, &steps, sizeof steps);
        CHECK(steps == 42);
        *(uint64_t *)c.window->segment.data = STATE_STEP_MAX + 1;
        CHECK(client_access(&c, true, 0, ZERO_PLANE_STEP, 0, 1) == ZERO_ERANGE);
        client_close(&c);
        session_close(&s);
}

static void gets_and_puts_out_of_range_are_refused(void)
{
        struct training t = training_default();
        struct session s;
        struct client c;
        uint64_t n;

        session_open(&s, &t);
        session_attach(&s);
        client_open(&c, &s.net, 0);
        n = s.layout->tensors[0].elements;
        CHECK(client_access(&c, false, s.layout->n_tensors, ZERO_PLANE_MASTER, 0, 1) ==
              ZERO_ENOGROUP);
        CHECK(client_access(&c, false, 0, ZERO_PLANE_GRAD, 0, 1) == ZERO_EINVAL);
        CHECK(client_access(&c, false, 0, 77, 0, 1) == ZERO_EINVAL);
        CHECK(client_access(&c, true, 0, ZERO_PLANE_SERVE, 0, 1) == ZERO_EINVAL);
        CHECK(client_access(&c, false, 1, ZERO_PLANE_MOMENT1, 0, 1) == ZERO_EINVAL);
        CHECK(client_access(&c, false, 0, ZERO_PLANE_MASTER, n, 1) == ZERO_ERANGE);
        CHECK(client_access(&c, false, 0, ZERO_PLANE_MASTER, 1, UINT64_MAX) == ZERO_ERANGE);
        CHECK(client_access(&c, false, 0, ZERO_PLANE_MASTER, UINT64_MAX, 2) == ZERO_ERANGE);
        CHECK(client_access(&c, false, 0, ZERO_PLANE_STEP, 0, 2) == ZERO_ERANGE);
        CHECK(client_access(&c, false, 0, ZERO_PLANE_MASTER, n, 0) == 0);
        client_close(&c);
        session_close(&s);
}

/* What was fetched before a put is gathered anew behind it. */
static void a_put_reaches_every_window(void)
{
        struct training t = training_default();
        struct session s;
        struct client c;
        float *values;
        const struct layout_tensor *weight;

        t.net = (struct net_options){ .nodes = 2, .owners = 2, .delay_ms = 2 };
        t.hold_groups = ZOO_GROUPS - 1; /* a window that keeps what was fetched */
        session_open(&s, &t);
        session_attach(&s);
        for (uint32_t r = 0; r < t.ranks; r++)
                session_fetches(&s, r);
        session_run(&s);
        weight = &s.layout->tensors[0];
        values = calloc(weight->elements, sizeof *values);
        client_open(&c, &s.net, 0);
        put(&c, 0, ZERO_PLANE_MASTER, 0, weight->elements, values, sizeof *values);
        memset(s.outcome.views[0], 0, sizeof s.outcome.views[0]);
        for (uint32_t r = 0; r < t.ranks; r++) {
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_FETCH, .group = ZOO_BIG });
                trainer_add(&s.trainers[r], (struct op){ .kind = OP_RELEASE, .group = ZOO_BIG });
        }
        session_run(&s);
        for (uint32_t n = 0; n < 2; n++) {
                const struct job *job = net_job(&s.net, n, "zoo");
                struct gather_info info;

                gather_info(job, &info);
                CHECK(info.gathers > ZOO_GROUPS - 2, "node %u gathered the group once only", n);
        }
        free(values);
        client_close(&c);
        session_close(&s);
}

/* ---- one step against AdamW in double precision ---- */

static double mean_gradient(const struct training *t, const layout *l, uint32_t tensor, uint64_t e)
{
        const struct layout_group *g = &l->groups[l->tensors[tensor].group];
        double sum = 0;

        for (uint32_t r = 0; r < t->ranks; r++)
                for (uint32_t mb = 0; mb < t->micro_batches; mb++)
                        if (layout_group_has_rank(g, r))
                                sum += (double)trainer_gradient(1, r, tensor, mb, e);
        return sum / layout_group_divisor(g, t->ranks);
}

static double global_norm(const struct training *t, const layout *l)
{
        double sum = 0;

        for (uint32_t i = 0; i < l->n_tensors; i++)
                for (uint64_t e = 0; !l->tensors[i].frozen && e < l->tensors[i].elements; e++)
                        sum += pow(mean_gradient(t, l, i, e), 2);
        return sqrt(sum);
}

static double first_step(double p, double g, const struct hyper_set *set)
{
        const double *x = set->value; /* lr, beta1, beta2, eps, weight_decay */

        p *= 1 - x[0] * x[4];
        return p - x[0] * g / (fabs(g) + x[3]); /* both bias corrections cancel at t = 1 */
}

/* Relative error, norm-wise, of one tensor after the step. */
static double error_of(struct session *s, struct client *c, uint32_t tensor, uint32_t set,
                       const float *before, double clip)
{
        const struct layout_tensor *t = &s->layout->tensors[tensor];
        CLEANUP(cleanup_free) float *after = malloc((t->elements + 1) * sizeof *after);
        double difference = 0, size = 0;

        CHECK(after);
        get(c, tensor, ZERO_PLANE_MASTER, 0, t->elements, after, sizeof *after);
        for (uint64_t e = 0; e < t->elements; e++) {
                double g = clip * mean_gradient(s->training, s->layout, tensor, e);
                double p = t->frozen ? (double)before[e]
                                     : first_step((double)before[e], g, &s->params.sets[set]);

                difference += pow(p - (double)after[e], 2);
                size += p * p;
        }
        return size > 0 ? sqrt(difference / size) : 0;
}

/* The set that a tensor has in the end: its own, or the other one. */
static uint32_t set_of(const struct session *s, uint32_t tensor, bool exchanged)
{
        return s->layout->tensors[tensor].set ^ exchanged;
}

/* The sets are put after all pushes but the last rank's; MASTER can no longer be put then. */
static void push_then_exchange_sets(struct session *s, struct client *c)
{
        uint32_t last = s->training->ranks - 1;

        for (uint32_t r = 0; r < last; r++)
                session_pushes(s, r, 1);
        session_run(s);
        CHECK(client_access(c, true, 0, ZERO_PLANE_STEP, 0, 1) == ZERO_EORDER);
        for (uint32_t i = 0; i < s->layout->n_tensors; i++) {
                uint64_t set = set_of(s, i, true);

                if (!s->layout->tensors[i].frozen)
                        put(c, i, ZERO_PLANE_SET, 0, 1, &set, sizeof set);
        }
        session_pushes(s, last, 1);
        for (uint32_t r = 0; r <= last; r++)
                trainer_add(&s->trainers[r], (struct op){ .kind = OP_STEP, .params = &s->params });
}

static void one_step_is_the_reference(bool exchanged)
{
        struct training t = training_default();
        struct session s;
        struct client c;
        float *before[32];
        double norm;

        t.net = (struct net_options){ .nodes = 3, .owners = 3 };
        t.push_groups = ZOO_GROUPS;
        if (exchanged) { /* the last rank is alone on its node: no push waits for its */
                t.ranks = 3;
                t.micro_batches = 1;
        }
        session_open(&s, &t);
        session_attach(&s);
        client_open(&c, &s.net, 0);
        for (uint32_t i = 0; i < s.layout->n_tensors; i++) {
                uint64_t n = s.layout->tensors[i].elements;

                before[i] = malloc((n + 1) * sizeof(float));
                get(&c, i, ZERO_PLANE_MASTER, 0, n, before[i], sizeof(float));
        }
        for (uint32_t r = 0; r < t.ranks; r++)
                s.trainers[r].step = 1;
        if (exchanged)
                push_then_exchange_sets(&s, &c);
        else
                session_program(&s, 1);
        session_run(&s);
        norm = global_norm(&t, s.layout);
        CHECK(fabs(s.trainers[0].grad_norm / norm - 1) < 1e-6, "%.9g, not %.9g",
              s.trainers[0].grad_norm, norm);
        for (uint32_t i = 0; i < s.layout->n_tensors; i++) {
                double error = error_of(&s, &c, i, set_of(&s, i, exchanged), before[i],
                                        fmin(1, t.clip_norm / norm));

                CHECK(error < 1e-6, "tensor %s: %g", s.layout->tensors[i].name, error);
                free(before[i]);
        }
        client_close(&c);
        session_close(&s);
}

static void one_step_is_adamw(void)
{
        one_step_is_the_reference(false);
}

static void the_set_that_was_put_is_the_one_that_applies(void)
{
        one_step_is_the_reference(true);
}

/* Every owner with a part of a tensor has its set, and keeps the set over a restart. */
static void sets_are_kept_by_every_owner(void)
{
        struct training t = training_default();
        struct session s;
        struct client c;
        uint64_t set = ZERO_SET_MAX - 1;

        t.net = (struct net_options){ .nodes = 3, .owners = 3 };
        session_open(&s, &t);
        session_attach(&s);
        client_open(&c, &s.net, 2);
        get(&c, 2, ZERO_PLANE_SET, 0, 1, &set, sizeof set);
        CHECK(set == s.layout->tensors[2].set);
        set = ZERO_SET_MAX - 1;
        put(&c, 0, ZERO_PLANE_SET, 0, 1, &set, sizeof set);
        for (uint32_t tensor = 0; tensor < 3; tensor += 2) { /* whoever owns them */
                *(uint64_t *)c.window->segment.data = ZERO_SET_MAX;
                CHECK(client_access(&c, true, tensor, ZERO_PLANE_SET, 0, 1) == ZERO_ERANGE);
        }
        client_close(&c);
        for (uint32_t r = 0; r < t.ranks; r++)
                trainer_kill(&s.trainers[r]);
        net_stop(&s.net);
        net_restart(&s.net);
        for (uint32_t n = 0; n < 3; n++) {
                const struct state *state = net_own(net_job(&s.net, n, "zoo"))->state;

                CHECK(state->tensor_set[0] == ZERO_SET_MAX - 1, "owner %u: %llu", n,
                      (unsigned long long)state->tensor_set[0]);
        }
        session_close(&s);
}

static bool all_prepared(const struct session *s)
{
        for (uint32_t n = 0; n < s->training->net.nodes; n++) {
                const struct job *job = job_find((struct engine *)&s->net.nodes[n].x, "zoo");

                if (net_own(job)->state->record->phase != ATTEMPT_PREPARED)
                        return false;
        }
        return true;
}

enum { GETS = 4 }; /* of a client at once, by daemon/step/tensors/access.h */

static bool requests_ended(void *arg)
{
        return list_empty(&((struct engine *)arg)->requests.all);
}

static bool accesses_ended(void *arg)
{
        return tensors_module.idle(arg);
}

/* An owner is busy for longer than a client waits.  Late values must not be written to the client's
 * memory, which the next put may use, nor read from there; and a client may have only GETS such
 * gets. */
static void late_accesses_leave_the_clients_memory_alone(uint32_t node)
{
        struct training t = training_default();
        Zero__Access m = ZERO__ACCESS__INIT;
        struct client c, late[GETS + 1];
        struct fault fault;
        struct session s;
        struct engine *x;
        float value, same, *memory;

        t.net = (struct net_options){ .nodes = 2, .owners = 1 };
        session_open(&s, &t);
        session_attach(&s);
        client_open(&c, &s.net, node);
        x = &s.net.nodes[node].x;
        memory = c.window->segment.data;
        get(&c, 0, ZERO_PLANE_MASTER, 0, 1, &value, sizeof value);
        net_own(net_job(&s.net, 0, "zoo"))->updating = true;
        m.plane = ZERO_PLANE_MASTER;
        m.count = 1;
        for (int i = 0; i <= GETS; i++) {
                memory[0] = value + 1;
                late[i].request = (struct request){ .finish = client_finish };
                request_begin(&x->requests, &late[i].request, uv_now(x->loop), 1);
                CHECK(access_start(net_job(&s.net, node, "zoo"), c.window, &m, i == GETS, 10000,
                                   &late[i].request, &fault) == 0);
        }
        CHECK(client_access(&c, false, 0, ZERO_PLANE_MASTER, 0, 1) == ZERO_EBUSY, "%s", c.text);
        net_wait(&s.net, requests_ended, x, "the deadline");
        for (int i = 0; i <= GETS; i++)
                CHECK(late[i].status == ZERO_EDEADLINE, "%s", late[i].text);
        memset(memory, 0xff, c.window->transfer_bytes);
        net_own(net_job(&s.net, 0, "zoo"))->updating = false;
        shard_settled(net_job(&s.net, 0, "zoo"));
        net_wait(&s.net, accesses_ended, x, "the late answers");
        for (uint64_t i = 0; i < c.window->transfer_bytes; i++)
                CHECK(((uint8_t *)memory)[i] == 0xff, "byte %llu", (unsigned long long)i);
        get(&c, 0, ZERO_PLANE_MASTER, 0, 1, &same, sizeof same);
        /* the other node has a copy of what was put */
        CHECK(same == (node == 0 ? value : value + 1), "%g", (double)same);
        client_close(&c);
        session_close(&s);
}

static void late_accesses(void)
{
        late_accesses_leave_the_clients_memory_alone(0);
        late_accesses_leave_the_clients_memory_alone(1);
}

/* A trainable tensor that only the node's owner holds. */
static uint32_t tensor_of(const struct job *job)
{
        uint32_t owner = net_own(job)->owner;

        for (uint32_t i = 0; i < job->layout->n_tensors; i++) {
                const struct layout_tensor *t = &job->layout->tensors[i];

                if (!t->frozen && range_within((struct range){ t->offset, t->elements },
                                               partition_range(job->partition, t->group, owner)))
                        return i;
        }
        CHECK(false, "no such tensor");
        return 0;
}

/*
 * All owners have voted, and their daemons start anew.  A put that comes before the decision waits:
 * a set that the step does not have would end the update, and the daemon with it.
 */
static void a_set_is_not_put_between_vote_and_decision_behind_a_restart(void)
{
        struct training t = training_default();
        uint64_t order = 1, set = ZERO_SET_MAX - 1;
        struct session s;
        const struct job *job;
        struct client c;

        t.net = (struct net_options){ .nodes = 2, .owners = 2, .delay_ms = 20 };
        open_listening(&s, &t);
        session_attach(&s);
        session_program(&s, 1);
        while (!all_prepared(&s))
                CHECK(trainers_turn(s.trainers, t.ranks, &order), "the decision came too early");
        kill_all(&s);
        net_stop(&s.net);
        net_restart(&s.net);
        CHECK(all_prepared(&s), "the decision came too early");
        client_open(&c, &s.net, 0);
        job = net_job(&s.net, 0, "zoo");
        put(&c, tensor_of(job), ZERO_PLANE_SET, 0, 1, &set, sizeof set);
        CHECK(job->version == 1);
        CHECK(net_own(job)->state->tensor_set[tensor_of(job)] == set);
        client_close(&c);
        session_close(&s);
}

static bool first_group_is_ahead(void *arg)
{
        struct session *s = arg;
        uint8_t present[64];

        for (uint32_t n = 0; n < s->training->net.owners; n++) {
                const struct replica *h = net_own(net_job(&s->net, n, "zoo"));

                if (!h->ahead || h->unread[0] || !accumulator_summed(h, 0, present))
                        return false;
        }
        return true;
}

/* While a put waits for the end of a copy, the group is updated ahead. */
static void a_put_that_waited_is_not_undone_with_an_update_ahead(void)
{
        struct training t = training_default();
        struct session s;
        struct client c;

        t.eager = true;
        t.clip_norm = 0;
        session_open(&s, &t);
        session_attach(&s);
        client_open(&c, &s.net, 0);
        for (uint32_t n = 0; n < t.net.owners; n++)
                net_own(net_job(&s.net, n, "zoo"))->copying = true;
        for (uint64_t i = 0; i < s.layout->tensors[0].elements; i++)
                ((float *)c.window->segment.data)[i] = value(0, ZERO_PLANE_MASTER, i);
        client_begin(&c, true, 0, ZERO_PLANE_MASTER, 0, s.layout->tensors[0].elements);
        session_push_ahead(&s, 1);
        net_wait(&s.net, first_group_is_ahead, &s, "the update ahead");
        CHECK(!c.done);
        for (uint32_t n = 0; n < t.net.owners; n++) {
                struct replica *h = net_own(net_job(&s.net, n, "zoo"));

                h->copying = false;
                shard_settled(h->job);
        }
        net_wait(&s.net, client_done, &c, "the put");
        CHECK(c.status == 0, "%s", c.text);
        check_tensor(&c, s.layout, 0, ZERO_PLANE_MASTER);
        client_close(&c);
        session_close(&s);
}

/* ---- turns ------------------------------------------------------------------------------ */

static uint32_t n_of(struct list *list)
{
        uint32_t n = 0;

        list_for_each (list, item) {
                n++;
        }
        return n;
}

static bool all_done(void *arg)
{
        const struct client *c = arg;

        for (int i = 0; i < TURNS + 4; i++)
                if (!c[i].done)
                        return false;
        return true;
}

/* However many clients a user has.  A call whose client goes meanwhile never begins. */
static void a_users_reads_and_writes_take_turns(void)
{
        struct training t = training_default();
        struct client clients[TURNS + 4];
        struct session s;
        struct replica *h;
        struct tensors *tensors;

        t.net = (struct net_options){ .nodes = 2, .owners = 1 };
        session_open(&s, &t);
        session_attach(&s);
        h = net_own(net_job(&s.net, 0, "zoo"));
        tensors = h->job->x->tensors;
        h->updating = true;
        for (int i = 0; i < TURNS + 4; i++) {
                client_open(&clients[i], &s.net, 0);
                client_begin(&clients[i], i % 2, 0, ZERO_PLANE_MASTER, 0, 1);
        }
        CHECK(n_of(&tensors->begun) == TURNS && n_of(&tensors->waiting) == 4);
        CHECK(n_of(&tensors->works) == TURNS);
        for (int i = 0; i < 2; i++)
                request_cancel(&clients[TURNS + i].request);
        CHECK(n_of(&tensors->waiting) == 2 && n_of(&tensors->accesses) == TURNS + 2);
        h->updating = false;
        shard_settled(h->job);
        net_wait(&s.net, all_done, clients, "the reads and writes");
        for (int i = 0; i < TURNS + 4; i++) {
                bool gone = i == TURNS || i == TURNS + 1;

                CHECK(clients[i].status == (gone ? ZERO_ECLOSED : 0), "%s", clients[i].text);
                client_close(&clients[i]);
        }
        CHECK(list_empty(&tensors->begun) && list_empty(&tensors->waiting));
        session_close(&s);
}

const struct test_case plane_cases[] = {
        { "a-users-reads-and-writes-take-turns", a_users_reads_and_writes_take_turns },
        { "late-accesses-leave-the-clients-memory-alone", late_accesses },
        { "a-set-is-not-put-between-vote-and-decision-behind-a-restart",
          a_set_is_not_put_between_vote_and_decision_behind_a_restart },
        { "planes-over-owners", planes_over_owners },
        { "the-step-count-is-kept-by-every-owner", the_step_count_is_kept_by_every_owner },
        { "gets-and-puts-out-of-range-are-refused", gets_and_puts_out_of_range_are_refused },
        { "a-put-reaches-every-window", a_put_reaches_every_window },
        { "a-put-that-waited-is-not-undone-with-an-update-ahead",
          a_put_that_waited_is_not_undone_with_an_update_ahead },
        { "one-step-is-adamw", one_step_is_adamw },
        { "the-set-that-was-put-is-the-one-that-applies",
          the_set_that_was_put_is_the_one_that_applies },
        { "sets-are-kept-by-every-owner", sets_are_kept_by_every_owner },
        { 0 },
};
