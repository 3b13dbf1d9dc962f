/*
 * query.h - questions of clients and of other nodes, answered with JSON.
 *
 *   query.c             which question goes where
 *   survey.c            questions to all nodes; combines their answers
 *   checksum.c          a job's checksum: this node's part, and all parts combined
 *   measured.c          how fast this node is, and all nodes
 *   examined.c          what each node finds wrong with itself, and nodes compared
 *   traced.c            what took time lately: this node's part, and all parts on one clock
 *   query_status.c      the state of this node, with its GPUs' memory
 *   query_checkpoint.c  checkpoints, restores and grants: questions to a job's coordinator
 *   query_visit.c       which checkpoints a directory has, and whether their bytes are whole
 *   query_membership.c  the owner list, and changes to it
 *   answer.c            ends a question
 */
#pragma once

#include "daemon/face/rpc/session.h"
#include "daemon/face/status/status.h"

/* Answers a client's question, now or later.  Not 0: refuses it. */
typedef int query_starter(struct pending_call *call, const char *what, const char *argument,
                          struct fault *fault);
/* What bounds a question of a client. */
enum query_bound {
        QUERY_LOOP = 1, /* the loop answers it at once, and its time is charged */
        QUERY_NODE, /* one node answers from what it knows: calls in flight of a session bound it */
        QUERY_SURVEY, /* all nodes work on it: a few of a user are in flight (user.h) */
        QUERY_LARGE,  /* a survey with megabytes in its answer: fewer of a user are in flight */
};
struct query_kind {
        const char *what;
        query_starter *start;
        enum query_bound bound;
};
/* NULL: there are no more. */
const struct query_kind *query_kind(size_t i);
query_starter status_query, survey_query, shards_query, checkpoint_query, visit_query,
        membership_query;

/* Answers a node's question.  job: NULL if the question concerns no job. */
typedef void question_answer(struct engine *x, struct job *job, uint32_t node,
                             const Zero__LinkMessage *m);
question_answer checkpoint_question, checksum_question, measure_question, examine_question,
        trace_question, drain_question, status_question;

/* ---- checksum.c ---- */

/* Combines the nodes' answers.  told: [node]; NULL: the node told nothing. */
json_t *checksums_together(const struct job *job, json_t *const *told);
/* Whether all nodes told the same version; if not, the job has stepped between their answers. */
bool checksums_agree(const struct job *job, json_t *const *told, json_int_t *ret_version);

/* ---- measured.c ---- */

/* All nodes' answers combined.  told: [node]. */
json_t *measured_together(const struct engine *x, json_t *const *told);

/* ---- examined.c ---- */

/* A node's answer to "examine"; came: an answer came. */
struct examined_answer {
        json_t *told;
        bool came;
        double clock_s, within_s; /* this node's clock when that node answered, give or take */
};
/* All nodes' answers combined, and compared with this node's.  [node] */
json_t *examined_together(const struct engine *x, const struct examined_answer *answers);

/* ---- traced.c ---- */

/* A node's answer to "trace"; told NULL: none. */
struct traced_answer {
        json_t *told;
        uint64_t asked_ns, took_ns; /* of this node's clock */
};
/* All nodes' answers combined.  [node] */
json_t *traces_together(const struct engine *x, const struct traced_answer *answers);

/* ---- answer.c ---- */

/* Answer a client's question.  They free the answer; NULL: out of memory. */
void query_end(struct pending_call *call, json_t *json);
void query_end_text(struct pending_call *call, char *text);
/* Answers with a record, and frees its arena. */
void query_end_record(struct pending_call *call, const struct record_type *type, const void *record,
                      struct arena *arena);
char *query_text(json_t *json); /* Frees json.  NULL: out of memory. */
/* The same for a node's question. */
void query_answer(struct engine *x, uint32_t node, uint64_t call, json_t *json);
void query_answer_text(struct engine *x, uint32_t node, uint64_t call, char *text); /* frees none */
void query_answer_record(struct engine *x, uint32_t node, uint64_t call,
                         const struct record_type *type, const void *record, struct arena *arena);
/* The same for a large record: a compute thread makes the text.  The record points to nothing of a
 * job.  The user's survey, a large one, ends with the answer. */
void query_write(struct pending_call *call, struct user *user, const struct record_type *type,
                 const void *record, struct arena *arena);
void query_answer_write(struct job *job, uint32_t node, uint64_t call,
                        const struct record_type *type, const void *record, struct arena *arena);
/* A node's answer; NULL: there is none, or it is not JSON. */
json_t *query_reply(int status, const Zero__LinkMessage *m);
