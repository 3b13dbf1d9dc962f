/*
 * Conversations with the coordinator of a job, from text files: a line of input, and below it,
 * indented, the actions that it gave.  "#" begins a comment.
 *
 * usage: test-job-coordinator [--update] FILE...
 *
 * Each FILE is replayed and compared; with --update it is rewritten with what the coordinator
 * gives. A new conversation is a file of inputs, run once with --update, and read.
 *
 *   job ranks N nodes A,B lists A;A,B   the coordinator begins.  lists: owners, one list after the
 *       [mirror] [resumed]              other, the last in force
 *   time MS                             the clock advances to MS
 *   up NODE, down NODE, cut NODE [A,B]  its link; the nodes that it cannot reach
 *   tick [unknown]                      unknown: the job is not on the coordinator's node
 *   join NODE rank R [of N] [session S] [incarnation I] [resume] [fails]
 *   clash NODE rank R                   a join with another layout
 *   claim NODE                          it has states of the job
 *   leave NODE rank R [session S] [orderly | gave-up | complete | unwanted]
 *   opened NODE nothing
 *   opened NODE [created] [attempt A] STATE...     a STATE begins with "owner"
 *       owner O [mirror] [list E] [version V] [decided A [carrying] [skipped]] [voted A] [norm X]
 *       [puts P] [fresh]            carrying: the decision is not carried out yet
 *   unreadable NODE STATUS TEXT         as opened, but its answer cannot be used
 *   failed NODE STATUS TEXT             the node does not open the job
 *   again NODE                          what keeps the node from creating the job passes
 *   ready NODE rank R attempt A [norm | ahead] [lr X]
 *   reduce NODE rank R attempt A [number N] [name N] [max | min] of X [of X]...
 *   vote NODE owner O [mirror] attempt A [norm X] [infinite] [asked] [refuses TEXT]
 *                                       norm: squared; asked: for the norm alone
 *   done NODE owner O [mirror] attempt A
 *   settled NODE [STATUS TEXT]
 *   filled NODE STATE, or filled NODE owner O [mirror] failed STATUS TEXT
 *   close                               the job is dropped
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/rules/coordinator.h"
#include "proto/cleanup.h"

enum { LINE = 512, STATES = 16 };

static struct coordinator c;
static bool begun;
static struct coordinator_actions actions;
static char node_names[ZERO_NODE_MAX][16];
static const char *names[ZERO_NODE_MAX];
static uint32_t n_nodes;
static uint64_t now_ms;
static node_set links;
static const char *file;
static uint32_t line_number;

static void fail(const char *what, const char *of)
{
        fprintf(stderr, "%s:%u: %s%s%s\n", file, line_number, what, of ? ": " : "", of ? of : "");
        exit(2);
}

/* ---- words ------------------------------------------------------------------------------- */

static char *at; /* what is left of the line */

static const char *word(void)
{
        char *w = at + strspn(at, " ");

        at = w + strcspn(w, " ");
        if (*at)
                *at++ = '\0';
        return *w ? w : NULL;
}

static bool word_is(const char *w)
{
        size_t n = strlen(w);

        at += strspn(at, " ");
        if (strncmp(at, w, n) != 0 || (at[n] && at[n] != ' '))
                return false;
        at += n;
        return true;
}

static const char *must(const char *what)
{
        const char *w = word();

        if (!w)
                fail("missing", what);
        return w;
}

static uint64_t number(void)
{
        const char *w = must("number");
        char *end;
        uint64_t n = strtoull(w, &end, 10);

        if (*end)
                fail("no number", w);
        return n;
}

static double real(void)
{
        const char *w = must("number");
        char *end;
        double x = strtod(w, &end);

        if (*end)
                fail("no number", w);
        return x;
}

static uint32_t node_of(const char *name)
{
        for (uint32_t n = 0; n < n_nodes; n++)
                if (strcmp(node_names[n], name) == 0)
                        return n;
        fail("no node of that name", name);
        return 0;
}

static int status_of(const char *name)
{
        for (int s = 0; s < 100; s++)
                if (strcmp(zero_status_name(s), name) == 0)
                        return s;
        fail("no status of that name", name);
        return 0;
}

static const char *rest(void)
{
        const char *text = at + strspn(at, " ");

        at += strlen(at);
        return text;
}

static void no_more(void)
{
        const char *w = word();

        if (w)
                fail("not understood", w);
}

/* ---- actions --------------------------------------------------------------------------------- */

static FILE *out;

static void print_fault(const struct fault *fault)
{
        if (fault->status)
                fprintf(out, "%s: %s\n", zero_status_name(fault->status), fault->text);
        else
                fprintf(out, "ok\n");
}

static void print_holder(const struct placement *p, uint32_t holder)
{
        fprintf(out, "owner %u%s on %s", holder_owner(p, holder),
                holder_copy(p, holder) ? " mirror" : "", names[holder_node(p, holder)]);
}

static void print_join_end(struct join *j)
{
        if (j->rank == RANK_ABSENT)
                fprintf(out, "answer the claim of %s: ", names[j->node]);
        else
                fprintf(out, "answer rank %u on %s: ", j->rank, names[j->node]);
        print_fault(&j->fault);
        free(j);
}

static void print_start(void)
{
        fprintf(out, "start version %llu, attempt %llu", (unsigned long long)c.step.version,
                (unsigned long long)c.step.attempt);
        if (c.step.decided_attempt)
                fprintf(out, ", attempt %llu was decided last",
                        (unsigned long long)c.step.decided_attempt);
        fprintf(out, "\n");
}

static void print_decision(const char *what)
{
        fprintf(out, "%sattempt %llu %s: version %llu, norm %g\n", what,
                (unsigned long long)c.step.decided_attempt,
                c.step.decision.commit ? "is committed" : "is skipped",
                (unsigned long long)c.step.version, c.step.decision.grad_norm);
}

static void print_fill(const struct coordinator_action *a)
{
        struct coordinator_sources s;

        coordinator_sources(&c, a->holder, &s);
        fprintf(out, "fill ");
        print_holder(&c.step.placement, a->holder);
        fprintf(out, " at version %llu, attempt %llu, from list %llu:",
                (unsigned long long)c.step.version, (unsigned long long)a->attempt,
                (unsigned long long)s.from->epoch);
        for (uint32_t h = 0, n = 0; h < placement_holders(s.from); h++) {
                if (!s.readable[h])
                        continue;
                fprintf(out, "%s ", n++ ? "," : "");
                print_holder(s.from, h);
        }
        fprintf(out, "\n");
}

static void print_unknown(const struct coordinator_action *a)
{
        fprintf(out, "%s has not told what it has: %s\n", names[a->node],
                a->flag                           ? "wait for a while"
                : node_set_has(c.untold, a->node) ? "wait until it comes"
                                                  : "go on without it");
}

static void print_states(const struct coordinator_action *a)
{
        switch (a->kind) {
        case COORDINATOR_STANDS:
                fprintf(out, "the job stands at version %llu\n",
                        (unsigned long long)c.step.version);
                break;
        case COORDINATOR_SETTLE:
                fprintf(out, "settle the states of list %llu on %s\n",
                        (unsigned long long)c.old_placement->placement.epoch, names[a->node]);
                break;
        case COORDINATOR_FILL:
                print_fill(a);
                break;
        case COORDINATOR_FILL_OVER:
                print_holder(&c.step.placement, a->holder);
                fprintf(out, " has its state\n");
                break;
        case COORDINATOR_FILL_AGAIN:
                print_holder(&c.step.placement, a->holder);
                fprintf(out, " is tried again: ");
                print_fault(&c.note);
                break;
        case COORDINATOR_WHOLE:
                fprintf(out, "all shards are where list %llu has them\n",
                        (unsigned long long)c.step.placement.epoch);
                break;
        case COORDINATOR_PLACED:
                fprintf(out, "tell %s: earlier states may go\n", names[a->node]);
                break;
        case COORDINATOR_TAKE_BACK:
                fprintf(out, "list %llu comes back: ",
                        (unsigned long long)c.old_placement->placement.epoch);
                print_fault(&c.refused);
                break;
        case COORDINATOR_UNKNOWN:
                print_unknown(a);
                break;
        case COORDINATOR_HINDERED:
                fprintf(out, "hindered: ");
                print_fault(&c.fault);
                break;
        case COORDINATOR_DISCARD:
                fprintf(out, "tell %s: drop the job\n", names[a->node]);
                break;
        case COORDINATOR_FINISHED:
                fprintf(out, "the job is finished\n");
                break;
        case COORDINATOR_UNWANTED:
                fprintf(out, "the job is finished, drop it\n");
                break;
        default:
                fprintf(out, "closed\n");
        }
}

static void print(const struct coordinator_action *a)
{
        fprintf(out, "  ");
        switch (a->kind) {
        case COORDINATOR_ASK:
                fprintf(out, "ask %s%s\n", names[a->node], a->flag ? " to create the job" : "");
                break;
        case COORDINATOR_JOIN_END:
                print_join_end(a->join);
                break;
        case COORDINATOR_TELL_BACK:
                fprintf(out, "tell all: rank %u is back\n", a->rank);
                break;
        case COORDINATOR_TELL_LEFT:
                fprintf(out, "tell all: rank %u %s\n", a->rank,
                        !a->flag   ? "is lost"
                        : a->fails ? "has left"
                                   : "has given up");
                break;
        case COORDINATOR_TELL_FENCED:
                fprintf(out, "tell %s: session %llu of rank %u is fenced\n", names[a->node],
                        (unsigned long long)a->session, a->rank);
                break;
        case COORDINATOR_RESIZED:
                fprintf(out, "the world size changes from %u to %u\n", a->rank, c.step.world_size);
                break;
        case COORDINATOR_START:
                print_start();
                break;
        case COORDINATOR_ANSWER:
                fprintf(out, "answer %s: ", names[a->node]);
                print_fault(&c.note);
                break;
        case COORDINATOR_PREPARE:
                fprintf(out, "%s attempt %llu\n",
                        a->flag ? "tell owners how ranks will end" : "ask for votes in",
                        (unsigned long long)c.step.attempt);
                break;
        case COORDINATOR_DECIDE:
                print_decision("tell all: ");
                break;
        case COORDINATOR_NORM:
                fprintf(out, "tell all: the norm is %g\n", c.step.norm);
                break;
        case COORDINATOR_REDUCED:
                fprintf(out, "tell all: reduction %u is", c.step.round.done - 1);
                for (uint32_t i = 0; i < c.step.round.n; i++)
                        fprintf(out, " %.17g", c.step.round.result[i]);
                fprintf(out, "\n");
                break;
        case COORDINATOR_REFUSE:
                fprintf(out, "tell all: ");
                print_fault(&c.step.refusal);
                break;
        case COORDINATOR_TELL_DECISION:
                fprintf(out, "tell %s: ", names[a->node]);
                print_decision("");
                break;
        default:
                print_states(a);
        }
}

static void happen(struct coordinator_event e)
{
        e.now_ms = now_ms;
        e.linked = e.up = links;
        actions.n = 0;
        coordinator_step(&c, &e, &actions);
        for (uint32_t i = 0; i < actions.n; i++)
                print(&actions.items[i]);
}

/* ---- the coordinator begins ---------------------------------------------------------------- */

static void end(void)
{
        if (!begun)
                return;
        while (!list_empty(&c.joins)) {
                struct join *j = CONTAINER_OF(c.joins.next, struct join, link);

                list_remove(&j->link);
                free(j);
        }
        coordinator_deinit(&c);
        begun = false;
}

static void nodes_read(char *list)
{
        n_nodes = 0;
        for (char *s = NULL, *n = strtok_r(list, ",", &s); n; n = strtok_r(NULL, ",", &s)) {
                snprintf(node_names[n_nodes], sizeof node_names[0], "%s", n);
                names[n_nodes] = node_names[n_nodes];
                n_nodes++;
        }
}

static void lists_read(char *lists, bool mirror, struct placement *ret)
{
        struct placement last;
        uint64_t epoch = 0;

        for (char *s = NULL, *l = strtok_r(lists, ";", &s); l; l = strtok_r(NULL, ";", &s)) {
                uint32_t owners[ZERO_NODE_MAX], n = 0;

                for (char *t = NULL, *o = strtok_r(l, ",", &t); o; o = strtok_r(NULL, ",", &t))
                        owners[n++] = node_of(o);
                last = *ret;
                placement_init(ret, epoch, owners, n, mirror);
                if (epoch++)
                        placement_follow(ret, &last, NODE_SET_NONE);
        }
}

static void on_job(void)
{
        struct coordinator_job job = { .name = "zoo", .nodes = names, .loss_scale = 1 };
        struct placement placement = { 0 };
        char *lists = NULL;
        bool mirror = false;

        end();
        now_ms = 1000;
        links = NODE_SET_NONE;
        for (const char *w; (w = word());) {
                if (strcmp(w, "ranks") == 0)
                        job.world_size = (uint32_t)number();
                else if (strcmp(w, "nodes") == 0)
                        nodes_read((char *)must("nodes"));
                else if (strcmp(w, "lists") == 0)
                        lists = (char *)must("lists");
                else if (strcmp(w, "mirror") == 0)
                        mirror = true;
                else if (strcmp(w, "resumed") == 0)
                        job.return_until_ms = now_ms + RETURN_MS;
                else
                        fail("not understood", w);
        }
        if (!job.world_size || !n_nodes || !lists)
                fail("a job has ranks, nodes and lists", NULL);
        job.n_nodes = n_nodes;
        lists_read(lists, mirror, &placement);
        if (coordinator_init(&c, &job, &placement))
                fail("out of memory", NULL);
        begun = true;
}

/* ---- nodes and ranks ----------------------------------------------------------------- */

static void on_node(enum coordinator_event_kind kind)
{
        uint32_t node = node_of(must("node"));

        if (kind == COORDINATOR_NODE_UP)
                node_set_add(&links, node);
        if (kind == COORDINATOR_NODE_DOWN)
                node_set_remove(&links, node);
        no_more();
        happen((struct coordinator_event){ .kind = kind, .node = node });
}

static void on_cut(void)
{
        struct coordinator_event e = { .kind = COORDINATOR_LINKS, .node = node_of(must("node")) };
        char *list = (char *)word();

        for (char *s = NULL, *n = list ? strtok_r(list, ",", &s) : NULL; n;
             n = strtok_r(NULL, ",", &s))
                node_set_add(&e.cut, node_of(n));
        no_more();
        happen(e);
}

static struct join *join_read(uint32_t rank)
{
        struct join *j = calloc(1, sizeof *j);

        if (!j)
                fail("out of memory", NULL);
        *j = (struct join){ .node = node_of(must("node")),
                            .rank = rank,
                            .world_size = c.step.world_size,
                            .incarnation = 1 };
        return j;
}

static void on_join(enum coordinator_event_kind kind)
{
        struct join *j = join_read(0);

        for (const char *w; (w = word());) {
                if (strcmp(w, "rank") == 0)
                        j->rank = (uint32_t)number();
                else if (strcmp(w, "of") == 0)
                        j->world_size = (uint32_t)number();
                else if (strcmp(w, "session") == 0)
                        j->session = number();
                else if (strcmp(w, "incarnation") == 0)
                        j->incarnation = (uint32_t)number();
                else if (strcmp(w, "resume") == 0)
                        j->resume = true;
                else if (strcmp(w, "fails") == 0)
                        j->fail_on_lost = true;
                else
                        fail("not understood", w);
        }
        j->session = j->session ? j->session : j->rank + 1;
        j->pid = 100 + j->rank;
        if (kind == COORDINATOR_CLASH)
                fault_set(&j->fault, ZERO_ELAYOUT, "the layouts differ");
        happen((struct coordinator_event){ .kind = kind, .join = j });
}

static void on_claim(void)
{
        struct join *j = join_read(RANK_ABSENT);

        no_more();
        happen((struct coordinator_event){ .kind = COORDINATOR_JOIN, .join = j });
}

static void on_leave(void)
{
        struct coordinator_event e = { .kind = COORDINATOR_LEAVE, .node = node_of(must("node")) };

        for (const char *w; (w = word());) {
                if (strcmp(w, "rank") == 0)
                        e.rank = (uint32_t)number();
                else if (strcmp(w, "session") == 0)
                        e.session = number();
                else if (strcmp(w, "orderly") == 0)
                        e.orderly = true;
                else if (strcmp(w, "gave-up") == 0)
                        e.orderly = e.gave_up = true;
                else if (strcmp(w, "complete") == 0 || strcmp(w, "unwanted") == 0)
                        e.finish = *w == 'c' ? FINISH_COMPLETE : FINISH_UNWANTED;
                else
                        fail("not understood", w);
        }
        e.orderly = e.orderly || e.finish;
        e.session = e.session ? e.session : e.rank + 1;
        happen(e);
}

/* ---- states -------------------------------------------------------------------------- */

static struct step_params params_of(double lr)
{
        return (struct step_params){ .n_sets = 1,
                                     .sets = { { .value = { lr, 0.9, 0.999, 1e-8, 0 } } },
                                     .loss_scale = 1 };
}

static void norm_set(struct votes *vote, double squared)
{
        exact_sum_init(&vote->norm);
        exact_sum_add(&vote->norm, squared);
}

static bool state_word(struct told_state *t, struct standing *s)
{
        if (word_is("mirror"))
                t->place.copy = 1;
        else if (word_is("list"))
                t->place.epoch = number();
        else if (word_is("version"))
                s->version = number();
        else if (word_is("decided"))
                s->decided_attempt = number();
        else if (word_is("carrying"))
                s->done = false;
        else if (word_is("skipped"))
                s->decision.commit = false;
        else if (word_is("voted"))
                s->prepared_attempt = number();
        else if (word_is("norm"))
                norm_set(&s->vote, real());
        else if (word_is("puts"))
                t->puts = number();
        else if (word_is("fresh"))
                s->fresh = true;
        else
                return false;
        return true;
}

/* A STATE line does not have the number of owners of its list. */
static uint32_t owners_of_list(uint64_t epoch)
{
        return epoch == c.step.placement.epoch
                       ? c.step.placement.n_owners
                       : node_set_count(
                                 c.step.placement.before[c.step.placement.epoch - 1 - epoch]);
}

/* The words after "owner". */
static void state_read(struct told_state *t, struct standing *s)
{
        *s = (struct standing){ .done = true,
                                .decision = { .commit = true,
                                              .finite = true,
                                              .grad_norm = 1,
                                              .grad_scale = 1,
                                              .loss_scale = 1 },
                                .vote = { .finite = true },
                                .params = params_of(0.1) };
        *t = (struct told_state){ .place = { .epoch = c.step.placement.epoch }, .standing = s };
        norm_set(&s->vote, 1);
        t->place.owner = (uint32_t)number();
        while (state_word(t, s))
                ;
        t->place.n_owners = owners_of_list(t->place.epoch);
        t->attempt = s->prepared_attempt ? s->prepared_attempt : s->decided_attempt + 1;
        if (!s->decided_attempt)
                s->decision = (struct decision){ .loss_scale = 0 };
        else if (s->decided_attempt == c.step.decided_attempt) /* the same, as it was made here */
                s->decision = c.step.decision;
}

static void on_opened(void)
{
        static struct standing standings[STATES];
        struct told_state states[STATES];
        struct coordinator_event e = { .kind = COORDINATOR_OPENED,
                                       .node = node_of(must("node")),
                                       .known = true,
                                       .states = states };

        if (word_is("nothing"))
                e.known = false;
        if (word_is("created"))
                e.created = true;
        if (word_is("attempt"))
                e.attempt = number();
        while (word_is("owner")) {
                state_read(&states[e.n_states], &standings[e.n_states]);
                e.n_states++;
        }
        no_more();
        happen(e);
}

static void on_failed(enum coordinator_event_kind kind)
{
        struct coordinator_event e = { .kind = kind, .node = node_of(must("node")), .known = true };

        e.status = status_of(must("status"));
        e.text = rest();
        happen(e);
}

static void on_settled(void)
{
        struct coordinator_event e = { .kind = COORDINATOR_SETTLED, .node = node_of(must("node")) };
        const char *status = word();

        e.epoch = c.old_placement ? c.old_placement->placement.epoch : 0;
        e.status = status ? status_of(status) : ZERO_OK;
        e.text = rest();
        happen(e);
}

static void on_filled(void)
{
        static struct standing standing;
        struct told_state told;
        uint32_t node = node_of(must("node"));
        struct coordinator_event e = {
                .kind = COORDINATOR_FILLED, .n_states = 1, .states = &told, .text = ""
        };

        if (!word_is("owner"))
                fail("whose state?", NULL);
        state_read(&told, &standing);
        if (word_is("failed")) {
                e.status = status_of(must("status"));
                e.text = rest();
        }
        e.holder = coordinator_holder(&c, node, told.place.owner, told.place.copy);
        if (e.holder == NO_HOLDER)
                fail("it does not hold that", NULL);
        no_more();
        happen(e);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void on_ready(void)
{
        struct coordinator_event e = { .kind = COORDINATOR_READY, .node = node_of(must("node")) };
        struct step_params params = params_of(0.1);

        e.params = &params;
        for (const char *w; (w = word());) {
                if (strcmp(w, "rank") == 0)
                        e.rank = (uint32_t)number();
                else if (strcmp(w, "attempt") == 0)
                        e.attempt = number();
                else if (strcmp(w, "norm") == 0)
                        e.params = NULL;
                else if (strcmp(w, "ahead") == 0)
                        e.kind = COORDINATOR_AHEAD;
                else if (strcmp(w, "lr") == 0)
                        params.sets[0].value[0] = real();
                else
                        fail("not understood", w);
        }
        happen(e);
}

static void on_reduce(void)
{
        struct coordinator_event e = { .kind = COORDINATOR_REDUCE, .node = node_of(must("node")) };
        struct numbers numbers = { .name = "loss" };
        double values[ZERO_VALUES_MAX];
        char name[ROUND_NAME + 1];

        e.numbers = &numbers;
        numbers.values = values;
        for (const char *w; (w = word());) {
                if (strcmp(w, "rank") == 0)
                        e.rank = (uint32_t)number();
                else if (strcmp(w, "attempt") == 0)
                        e.attempt = number();
                else if (strcmp(w, "number") == 0)
                        numbers.number = (uint32_t)number();
                else if (strcmp(w, "name") == 0)
                        numbers.name = strcpy(name, must("name"));
                else if (strcmp(w, "max") == 0)
                        numbers.op = ZERO_REDUCE_MAX;
                else if (strcmp(w, "min") == 0)
                        numbers.op = ZERO_REDUCE_MIN;
                else if (strcmp(w, "of") == 0 && numbers.n < ZERO_VALUES_MAX)
                        values[numbers.n++] = real();
                else
                        fail("not understood", w);
        }
        happen(e);
}

static void on_holder(enum coordinator_event_kind kind)
{
        struct coordinator_event e = { .kind = kind, .node = node_of(must("node")) };
        struct votes vote = { .finite = true };

        norm_set(&vote, 1);
        e.vote = &vote;
        for (const char *w; (w = word());) {
                if (strcmp(w, "owner") == 0)
                        e.owner = (uint32_t)number();
                else if (strcmp(w, "mirror") == 0)
                        e.copy = 1;
                else if (strcmp(w, "attempt") == 0)
                        e.attempt = number();
                else if (strcmp(w, "norm") == 0)
                        norm_set(&vote, real());
                else if (strcmp(w, "infinite") == 0)
                        vote.finite = false;
                else if (strcmp(w, "asked") == 0)
                        e.norm_only = true;
                else if (strcmp(w, "refuses") == 0)
                        fault_set(&vote.refused, ZERO_ECONFLICT, "%s", rest());
                else
                        fail("not understood", w);
        }
        happen(e);
}

/* ---- lines --------------------------------------------------------------------------- */

static void on_tick(void)
{
        bool known = !word_is("unknown");

        no_more();
        happen((struct coordinator_event){ .kind = COORDINATOR_TICK, .known = known });
}

static void on_close(void)
{
        no_more();
        happen((struct coordinator_event){
                .kind = COORDINATOR_CLOSE, .status = ZERO_ENOJOB, .text = "the job was dropped" });
}

static const struct {
        const char *word;
        void (*run)(void);
        void (*run_kind)(enum coordinator_event_kind kind);
        enum coordinator_event_kind kind;
} commands[] = {
        { .word = "job", .run = on_job },
        { .word = "tick", .run = on_tick },
        { .word = "cut", .run = on_cut },
        { .word = "claim", .run = on_claim },
        { .word = "leave", .run = on_leave },
        { .word = "opened", .run = on_opened },
        { .word = "settled", .run = on_settled },
        { .word = "filled", .run = on_filled },
        { .word = "ready", .run = on_ready },
        { .word = "reduce", .run = on_reduce },
        { .word = "close", .run = on_close },
        { .word = "up", .run_kind = on_node, .kind = COORDINATOR_NODE_UP },
        { .word = "down", .run_kind = on_node, .kind = COORDINATOR_NODE_DOWN },
        { .word = "again", .run_kind = on_node, .kind = COORDINATOR_ASK_AGAIN },
        { .word = "join", .run_kind = on_join, .kind = COORDINATOR_JOIN },
        { .word = "clash", .run_kind = on_join, .kind = COORDINATOR_CLASH },
        { .word = "failed", .run_kind = on_failed, .kind = COORDINATOR_OPEN_FAILED },
        { .word = "unreadable", .run_kind = on_failed, .kind = COORDINATOR_OPENED },
        { .word = "vote", .run_kind = on_holder, .kind = COORDINATOR_VOTE },
        { .word = "done", .run_kind = on_holder, .kind = COORDINATOR_DONE },
};

static void input(char *line)
{
        const char *w;

        at = line;
        w = must("input");
        if (strcmp(w, "time") == 0) {
                now_ms = number();
                no_more();
                return;
        }
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
                if (strcmp(commands[i].word, w) != 0)
                        continue;
                if (!begun && commands[i].run != on_job)
                        fail("there is no job yet", NULL);
                if (commands[i].run)
                        commands[i].run();
                else
                        commands[i].run_kind(commands[i].kind);
                return;
        }
        fail("no such input", w);
}

/* Copies inputs and comments, and replaces the actions. */
static void replay(FILE *in)
{
        char line[LINE], copy[LINE];

        for (line_number = 1; fgets(line, sizeof line, in); line_number++) {
                line[strcspn(line, "\n")] = '\0';
                if (line[0] == ' ')
                        continue;
                fprintf(out, "%s\n", line);
                if (!line[0] || line[0] == '#')
                        continue;
                memcpy(copy, line, sizeof copy);
                input(copy);
        }
        end();
}

/* ---- files ----------------------------------------------------------------------------------- */

/* False: the texts differ; prints the first line that does. */
static bool compare(const char *said, FILE *in)
{
        char line[LINE];
        uint32_t n = 1;

        for (; fgets(line, sizeof line, in); n++) {
                size_t length = strlen(line);

                if (strncmp(said, line, length) != 0) {
                        printf("%s:%u: expected\n%sbut it is\n%.*s\n", file, n, line,
                               (int)strcspn(said, "\n"), said);
                        return false;
                }
                said += length;
        }
        if (*said)
                printf("%s:%u: not expected\n%.*s\n", file, n, (int)strcspn(said, "\n"), said);
        return !*said;
}

static bool run(bool update)
{
        FILE *in = fopen(file, "r"), *to;
        char *said = NULL;
        size_t size = 0;
        bool same;

        out = open_memstream(&said, &size);
        if (!in || !out)
                fail(strerror(errno), NULL);
        replay(in);
        fclose(out);
        rewind(in);
        same = update || compare(said, in);
        fclose(in);
        to = update ? fopen(file, "w") : NULL;
        if (update && (!to || fputs(said, to) < 0 || fclose(to)))
                fail(strerror(errno), NULL);
        free(said);
        return same;
}

int main(int argc, char **argv)
{
        bool update = argc > 1 && strcmp(argv[1], "--update") == 0, same = true;

        for (int i = 1 + update; i < argc; i++) {
                file = argv[i];
                same = run(update) && same;
        }
        free(actions.items);
        return same ? 0 : 1;
}
