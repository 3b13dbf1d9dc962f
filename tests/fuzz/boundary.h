/*
 * boundary.h - variants of a message in which one number is at a boundary.
 *
 * Sizes and counts go wrong where arithmetic wraps: random bytes seldom get there.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

/*
 * Variant `*n` of the message: one field, or one element of a repeated field, gets one boundary
 * value.  False: the message has fewer variants, and *n is less by their number.
 */
bool boundary_set(ProtobufCMessage *m, size_t *n);
