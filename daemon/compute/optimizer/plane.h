/*
 * plane.h - the planes of a job, by kind and index.  Included by optimizer.h.
 *
 * enum zero_plane numbers planes for clients, other nodes and checksums.  The daemon translates
 * these numbers here alone, so a new plane is a row of plane.c and renumbers none.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "proto/zero_types.h"

enum plane_kind {
        PLANE_NONE,
        PLANE_MASTER,
        PLANE_MOMENT,
        PLANE_GRAD,
        PLANE_SERVE,
        PLANE_OLD,  /* old values of eager groups; clients do not see it */
        PLANE_STEP, /* one number a tensor, and so is PLANE_SET */
        PLANE_SET,
};

struct plane {
        enum plane_kind kind;
        uint32_t index; /* of a moment; otherwise 0 */
};

static const struct plane plane_master = { PLANE_MASTER, 0 };
static const struct plane plane_grad = { PLANE_GRAD, 0 };
static const struct plane plane_serve = { PLANE_SERVE, 0 };
static const struct plane plane_old = { PLANE_OLD, 0 };

/* Plane k of those that an update changes: master, then the moments. */
static inline struct plane plane_updated(uint32_t k)
{
        return k ? (struct plane){ PLANE_MOMENT, k - 1 } : plane_master;
}

/* PLANE_NONE: no plane of the daemon has that number. */
struct plane plane_from(uint32_t number);
/* 0: the plane has no number. */
uint32_t plane_number(struct plane plane);
/* Bytes that n elements of a group's plane take; dtype: of SERVE and GRAD. */
uint64_t plane_bytes(struct plane plane, enum zero_dtype dtype, uint64_t n);
