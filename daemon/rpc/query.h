/*
 * query.h - questions of clients, and of other nodes, that are answered with JSON.
 *
 *   query.c             which question goes where
 *   survey.c            questions to all nodes, and their answers put together
 *   checksum.c          a job's checksum: this node's part, and all together
 *   query_status.c      the state of this node, with what GPUs tell of their memory
 *   query_checkpoint.c  checkpoints and restores: questions to a job's coordinator
 *   query_membership.c  the owner list, and changes of it
 *   answer.c            how a question ends
 */
#pragma once

#include "daemon/rpc/session.h"
#include "daemon/status/status.h"

/* Answers a client's question, now or later; not 0: it is refused. */
typedef int query_starter(struct pending_call *call, const char *what, const char *argument,
                          struct fault *fault);
query_starter status_query, survey_query, shards_query, checkpoint_query, membership_query;

/* Answers the question of a node.  job: NULL where the question is of none. */
typedef void question_answer(struct engine *x, struct job *job, uint32_t node,
                             const Zero__LinkMessage *m);
question_answer checkpoint_question, checksum_question;

/* ---- checksum.c ---- */

/* Sums of all nodes, [node] as each has told, NULL: nothing. */
json_t *checksums_together(const struct job *job, json_t *const *told);
/* Whether all told one version; else the job has stepped between their answers. */
bool checksums_agree(const struct job *job, json_t *const *told, json_int_t *ret_version);

/* ---- answer.c ---- */

/* The answer, which is taken over, to a client's question; NULL: out of memory. */
void query_end(struct pending_call *call, json_t *json);
void query_end_text(struct pending_call *call, char *text);
/* A record, whose arena is freed. */
void query_end_record(struct pending_call *call, const struct record_type *type, const void *record,
                      struct arena *arena);
char *query_text(json_t *json); /* NULL: out of memory; takes json over */
/* The same, to a node's question. */
void query_answer(struct engine *x, uint32_t node, uint64_t call, json_t *json);
void query_answer_record(struct engine *x, uint32_t node, uint64_t call,
                         const struct record_type *type, const void *record, struct arena *arena);
/* What a node has answered; NULL: it did not, or no JSON. */
json_t *query_reply(int status, const Zero__LinkMessage *m);
