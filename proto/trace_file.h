/*
 * trace_file.h - what took time on nodes, as a file of the Trace Event Format that Perfetto and
 * chrome://tracing open.
 *
 * A process of the trace is a node.  A track is a rank, an owner, or a node that sent payloads.
 * Events of one track may overlap, which the format does not allow, so that a track gets as many
 * lanes as it needs.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TRACE_WORD_MAX = 32 };

struct trace_event {
        char what[TRACE_WORD_MAX]; /* "fetch", "vote" */
        uint32_t who;              /* the rank, the owner, or the node that sent the payload */
        long long group;           /* -1: none */
        uint64_t version;
        double begin, took;                 /* microseconds */
        const char *waits_for, *waits_what; /* NULL: it has ended; else it ends with the trace */
};

/* Both may return NULL: numbers stand for names then. */
struct trace_names {
        const char *(*node)(const void *arg, uint32_t node);
        const char *(*group)(const void *arg, uint64_t group);
        const void *arg;
};

struct trace_file;

/* NULL: out of memory.  The stream and names stay the caller's.  names: until the end. */
struct trace_file *trace_file_begin(FILE *out, const struct trace_names *names);
/* Sorts the events of a node, and writes those that ended in the last microseconds, and those that
 * wait.  lately 0: all. */
void trace_file_node(struct trace_file *t, uint32_t pid, const char *node,
                     struct trace_event *events, size_t n, double lately);
/* Returns the number of lines.  The caller asks the stream whether all is written. */
unsigned trace_file_end(struct trace_file *t);
