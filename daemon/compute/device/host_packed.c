/* An update of planes in formats by the operations that an instruction set has for each part. */
#include "daemon/compute/device/host.h"

struct packed_update packed_behind(const struct packed_update *u, size_t n)
{
        struct packed_update ret = *u;

        for (uint32_t k = 0; k < update_planes(u->rule, u->scalars); k++)
                ret.planes[k] = (uint8_t *)u->planes[k] + format_bytes(u->formats[k], n);
        ret.served = u->served ? u->served + n : NULL;
        ret.grad += n;
        ret.element += n;
        ret.n -= n;
        return ret;
}

/* At most a record. */
static void update_record(const struct device_ops *ops, const struct packed_update *u)
{
        float values[UPDATE_PLANES][FORMAT_STEP], *planes[UPDATE_PLANES];
        uint32_t n_planes = update_planes(u->rule, u->scalars);

        for (uint32_t k = 0; k < n_planes; k++) {
                planes[k] = u->formats[k] == FORMAT_FP32 ? u->planes[k] : values[k];
                if (u->formats[k] != FORMAT_FP32)
                        ops->unpack(u->formats[k], values[k], u->served, u->planes[k], FORMAT_STEP);
        }
        ops->update(u->rule, u->scalars, u->n, planes, u->grad, NULL);
        for (uint32_t k = 0; k < n_planes; k++)
                if (u->formats[k] != FORMAT_FP32)
                        ops->pack(u->formats[k], u->planes[k], u->served, values[k], FORMAT_STEP,
                                  dither_at(k, u->step, u->element));
}

void host_update_packed(const struct device_ops *ops, const struct packed_update *u)
{
        for (struct packed_update left = *u; left.n > 0;) {
                struct packed_update record = left;

                record.n = left.n < FORMAT_STEP ? left.n : FORMAT_STEP;
                update_record(ops, &record);
                if (record.n == left.n)
                        return;
                left = packed_behind(&left, FORMAT_STEP);
        }
}
