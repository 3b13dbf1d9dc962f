/*
 * place.h - memory of this machine's devices: the host's, and that of others.
 *
 * A place is a number: 0 is the host, the others are places in this process alone.  Code outside
 * daemon/compute/device only passes places and addresses on.  The node's operations (engine.ops)
 * compute wherever their operands lie.
 */
#pragma once

#include "daemon/compute/device/device.h"
#include "proto/fault.h"
#include "proto/zero_gpu.h"

enum { PLACES_MAX = 64 };
/* The place of an address. */
uint32_t place_of(const void *memory);
/* True if the CPU can read and write memory there. */
static inline bool place_is_host(uint32_t place)
{
        return place == 0;
}
/* How many places are of its kind: one host, or the other devices. */
uint32_t places_like(uint32_t place);
/* Device i of those beside the host, counted round.  There must be one. */
uint32_t place_nth(uint32_t i);
/* "host" or "GPU 0", for people. */
struct place_name {
        char text[16];
} place_name(uint32_t place);
/* The operations on memory of any place; NULL: there is only the host. */
const struct device_ops *place_ops(void);
/* Returns n bytes that the CPU can read: at p itself, or copied to the buffer. */
const void *place_read(const void *p, size_t n, void *buffer);

/*
 * Memory of a place other than the host, for this process alone, aligned to 256 bytes.  what: names
 * the memory in ZERO_ENOMEM and `zeroctl status`.  place_alloc() may take time, place_free() takes
 * none.
 */
int place_alloc(uint32_t place, uint64_t bytes, const char *what, void **ret, struct fault *fault);
void place_free(void *memory);

/* Bytes that are free in a place other than the host; not on the loop thread.  0: not known. */
uint64_t place_left(uint32_t place);

/* Charges memory of place_alloc() or segment_new_away() to a user until it is given back. */
void place_charge(const void *memory, uint32_t user);
/* Bytes of the place charged to a user. */
uint64_t place_charged(uint32_t place, uint32_t user);

/*
 * What a device other than the host, which has all the memory, does one after another for a thread.
 * They only begin.  Updates: all of one rule.  A product of any size, but not of two transposed
 * matrices; the order of its sums is the device's own.  Quotients of bf16, rounded to bf16; to may
 * be from.  Values of a moment's format in another dtype, from the one on that is `skip` behind the
 * address of its record.
 */
void place_update(const struct update_piece *pieces, size_t n);
void place_product(const struct product *p);
void place_divide(uint16_t *to, const uint16_t *from, float by, size_t n);
void place_unpack(enum format format, enum zero_dtype to, void *dst, const void *src, size_t skip,
                  size_t n);
/* Waits for all of these that this thread has begun there. */
void place_updated(uint32_t place);

/* Selects the device for this thread's calls of another library that uses devices; -errno. */
int place_use(uint32_t place);
/* Copies n bytes to several addresses, between devices at once.  Overwrites dst[]. */
void place_spread(void **dst, uint32_t n_dst, const void *src, size_t n);

/*
 * Host memory for bytes in transit between another place and another node.  Contents are undefined.
 * NULL: out of memory.  Up to TRANSIT_BYTES a device copies from and to it in one go.
 */
enum { TRANSIT_BYTES = 8 << 20 };
void *transit_new(size_t bytes);
void transit_free(void *buffer);

/* ---- events of trainers ---- */

/*
 * Opens a rank's events, at most ZERO_GPU_EVENTS (else ZERO_EINVAL).  *ret is NULL if the driver
 * does not open them in this process.  They may belong to another user, be made with another
 * /dev/shm, or be no events at all.
 */
struct place_events;
int place_events_open(uint32_t place, const uint8_t (*handles)[ZERO_GPU_HANDLE], uint32_t n,
                      struct place_events **ret, struct fault *fault);
void place_events_close(struct place_events *e);
uint32_t place_events_count(const struct place_events *e);
/* 1: the event's work is done, 0: not yet, or -errno. */
int place_event_done(struct place_events *e, uint32_t index);
