/* pieces.h - what a reduction and an update of a range get: where its planes and gradients lie. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/compute/device/formats.h"
#include "daemon/compute/device/rules.h"
#include "proto/zero_types.h"

/* A piece of an fp32 accumulator and what is added to it. */
struct reduce_piece {
        /* NULL: the sum is only measured, and all sources lie on one GPU, at most as many as its
         * update adds up (`first`) */
        float *acc;
        size_t n;               /* elements, of acc and of each source */
        size_t k;               /* sources; 0: acc stays as it is */
        const void *const *src; /* [k] */
        bool first;             /* the sum replaces the values of acc; k > 0 */
};

enum { UPDATE_SOURCES = 3 }; /* most contributions that an update of a piece adds up */

/*
 * A piece of an update, of n elements; see rules.h.
 *
 * The votes of all owners decide whether a step is carried out and how its gradients are scaled.
 * That is recorded on the host before any update is launched, and a skipped step has no launch.  So
 * the device reads neither.
 *
 * The gradient is an accumulator (one source, from and wire fp32), or the contributions themselves,
 * which are added up as by reduce().  Then their sum has been measured, and need not be kept.
 */
struct update_piece {
        enum update_rule rule;
        struct update_scalars scalars;
        size_t n;
        const float *in[UPDATE_PLANES];   /* [plane of the rule]; the rest is ignored */
        const void *grad[UPDATE_SOURCES]; /* [k] */
        uint32_t k;                       /* at least 1 */
        enum zero_dtype from, wire;       /* of reduce() */
        /* Each has its input's address (in place), or overlaps no input. */
        float *out[UPDATE_PLANES];
        /* NULL, or out[0] rounded to serve_dtype, written in the same pass.  Where plane 0 has the
         * format of a master it is the served plane, which is read, too. */
        void *serve;
        enum zero_dtype serve_dtype;
        /*
         * in[k] has this format, and so does out[k] in place; elsewhere out[k] is in fp32.  Where a
         * plane is not in fp32, its address is that of a record, and the piece begins `skip`
         * elements behind it.  The same holds of the served plane that belongs to a master.  skip
         * is 0 where out[k] is in 8 bits: records are packed whole, with what they have behind the
         * piece.
         */
        enum format format[UPDATE_PLANES];
        uint32_t dither[UPDATE_PLANES]; /* dither_at() of that record */
        uint32_t skip;
};

/* The format of out[k]. */
FORMAT_FUNCTION enum format update_out_format(const struct update_piece *u, uint32_t k)
{
        return u->out[k] == u->in[k] ? u->format[k] : FORMAT_FP32;
}

/*
 * An update of n elements in place, whose planes are in formats: each whole record (formats.h) is
 * unpacked, changed and packed.  In the last one only n % 128 elements change.
 */
struct packed_update {
        enum update_rule rule;
        const struct update_scalars *scalars;
        size_t n;
        enum format formats[UPDATE_PLANES]; /* [plane of the rule]; all moments have one name */
        void *planes[UPDATE_PLANES];        /* likewise, from a record on */
        uint16_t *served;                   /* of a master's formats */
        const float *grad;
        uint64_t step, element; /* of the first element, for dither_at(); the plane is the seed */
};
