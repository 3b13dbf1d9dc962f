/*
 * A trainer's GPU: work that ends long after the calls that depend on it.
 *
 * Each piece of work writes a gradient or reads a view when it ends, in the order of enqueuing, and
 * an event is recorded behind each.  A daemon that reads a slot, or fills a slab again, before the
 * event is done gets other bytes.
 */
#pragma once

#include "trainer.h"

enum { STREAM_EVENTS = 12 };

struct stream;

/* Opens that many GPUs unless as many are open; they are empty then. */
void stream_gpus_open(uint32_t n);
/* The number of bytes that are free on all GPUs. */
uint64_t stream_gpus_left(void);
/* Makes a trainer's stream, with new events that its needs name. */
struct stream *stream_new(struct trainer *t);
void stream_free(struct stream *s);
/*
 * Enqueues work and records an event behind it.  The work writes the gradient of a push, or reads a
 * held view and checks that it has the fetched bytes.  False: all events are in use.
 */
bool stream_write(struct stream *s, const struct op *op, uint32_t slot, uint32_t *ret_event);
bool stream_read(struct stream *s, uint32_t group, uint32_t *ret_event);
/* Enqueues work that reads all held views. */
bool stream_read_held(struct stream *s, uint32_t *ret_event);
/* The message that named the event was answered; well: with success, which comes only after the
 * work. */
void stream_answered(struct stream *s, uint32_t event, bool well);
/* Ends the next piece of work, if there is one. */
bool stream_work(struct stream *s);
/* Ends all work. */
void stream_finish(struct stream *s);
/* The work never ends; the views that it reads no longer belong to this trainer. */
void stream_forget(struct stream *s);
