/* notes.h - what this node has to remember of a job beside its states.  Loop thread. */
#pragma once

#include <stdbool.h>

#include "proto/fault.h"

struct store;

enum { NOTE_SIZE = 8192 };
#define NOTE_DROP ".drop"
#define NOTE_SCHEDULE ".schedule"
#define NOTE_GRANTS ".grants"

/* Writes a note to a small file beside the states, over an older one of that kind.  The text is
 * shorter than NOTE_SIZE. */
int note_write(const struct store *store, const char *kind, const char *job, const char *text,
               struct fault *fault);
/* False: there is none. */
bool note_read(const struct store *store, const char *kind, const char *job,
               char ret[static NOTE_SIZE]);
void note_delete(const struct store *store, const char *kind, const char *job);
/* each() may change the text, and deletes no note but its own. */
void notes_each(const struct store *store, const char *kind, void (*each)(char *text, void *arg),
                void *arg);
