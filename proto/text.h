/*
 * Text from outside: names that are safe to print, to log and to put into JSON.
 * Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Names of what a client runs in, a Slurm job or a pod. */
#define ORIGIN_CHARACTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
enum { ORIGIN_MAX = 253 };

enum { TEXT_QUOTE = 100 };

struct text_quote {
        char text[TEXT_QUOTE];
};

/* True if s is UTF-8 without control characters (C0, DEL, C1), line separators and those that
 * change the direction of text. */
bool text_printable(const char *s);
/* Puts '?' in place of each byte of what is not printable. */
void text_scrub(char *s);
/* Drops a character at the end of s that lost its last bytes when s was cut. */
void text_trim(char *s);
/* A name in single quotes, shortened so that several fit into one sentence. */
struct text_quote text_quote(const char *name);
