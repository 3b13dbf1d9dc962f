/*
 * A trainer's GPU: work that is done long after the calls that depend on it were made.
 *
 * Each piece of work writes a gradient or reads a view at its end, in the order of its enqueuing,
 * and behind each lies an event.  A daemon that reads a slot, or fills a slab anew, before the
 * event is done makes other bytes of it.
 */
#pragma once

#include "trainer.h"

enum { STREAM_EVENTS = 12 };

struct stream;

/* Opens so many GPUs, where there were not as many; nothing is on them then. */
void stream_gpus_open(uint32_t n);
/* Bytes that are free on all of them. */
uint64_t stream_gpus_left(void);
/* A trainer's, with new events that its needs name; until it is freed. */
struct stream *stream_new(struct trainer *t);
void stream_free(struct stream *s);
/*
 * Enqueues work behind which an event lies: to write what a push takes; to read a held view and
 * find what was in it when it was fetched.  False: all events are in use.
 */
bool stream_write(struct stream *s, const struct op *op, uint32_t slot, uint32_t *ret_event);
bool stream_read(struct stream *s, uint32_t group, uint32_t *ret_event);
/* To read all that it holds. */
bool stream_read_held(struct stream *s, uint32_t *ret_event);
/* The message that named it was answered; well: as it is only when the work is done. */
void stream_answered(struct stream *s, uint32_t event, bool well);
/* The next piece of work, if there is any, is done now. */
bool stream_work(struct stream *s);
/* All of it. */
void stream_finish(struct stream *s);
/* It is never done; the views that it reads are none of this trainer's any more. */
void stream_forget(struct stream *s);
