/*
 * coordinator.h - shared by the parts of a job's coordinator: its steps (coordinator.c), joining
 * and opening the job on all nodes (opening.c), who is late (lateness.c).
 */
#pragma once

#include "daemon/exchange/exchange.h"

enum open_phase { OPEN_ASKING, OPEN_DONE, OPEN_FAILED };

enum node_open { NODE_UNASKED, NODE_ASKED, NODE_OPEN };

/* What a node last reported to be late on it. */
struct report {
        bool waiting;
        uint32_t n;
        struct wait_line lines[WAIT_LINES];
};

struct coordinator {
        struct list link; /* exchange.coordinators */
        struct exchange *x;
        uint32_t references; /* itself, and calls under way */
        bool dead;
        char name[ZERO_NAME_MAX + 1];
        uint32_t uid, reduce_dtype;
        Zero__Layout *message;
        layout *layout;
        struct step step;
        enum open_phase phase;
        enum node_open nodes[ZERO_NODE_MAX];
        bool created[ZERO_NODE_MAX]; /* made there by this opening: nothing is lost if it is dropped
                                      */
        bool version_known;          /* some owner has told where its state stands */
        struct fault fault;          /* why opening failed */
        struct list joins;
        struct report reports[ZERO_NODE_MAX];
        bool told; /* the last summary was not empty */
};

/* A join that waits for its answer. */
struct join {
        struct list link;
        uint32_t node, rank;
        uint64_t call;
        bool admitted;
};

/* Finding, holding, and a message that bears the job's name and epoch. */
struct coordinator *coordinator_find(const struct exchange *x, const char *name);
void coordinator_unref(struct coordinator *c);
Zero__LinkMessage coordinator_to(const struct coordinator *c);

/* opening.c */
void join_end(struct coordinator *c, struct join *j, int status, const char *text);
void coordinator_close(struct coordinator *c, int status, const char *text);
void coordinator_join(struct exchange *x, uint32_t node, const Zero__LinkMessage *m);
void join_forget(struct coordinator *c, uint32_t node, uint32_t rank);
void open_ask(struct coordinator *c, uint32_t node);

/* lateness.c */
void coordinator_report(struct coordinator *c, uint32_t node, const Zero__Progress *p);
void coordinator_tell(struct coordinator *c);
