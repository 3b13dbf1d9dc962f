/* Numbers and elements of planes; see plane.h. */
#include "daemon/compute/optimizer/plane.h"

#include "proto/dtype.h"

/* [number]; a group's average is the last of its moments. */
static const struct plane planes[] = {
        [ZERO_PLANE_MASTER] = { PLANE_MASTER, 0 },  [ZERO_PLANE_MOMENT1] = { PLANE_MOMENT, 0 },
        [ZERO_PLANE_MOMENT2] = { PLANE_MOMENT, 1 }, [ZERO_PLANE_MOMENT3] = { PLANE_MOMENT, 2 },
        [ZERO_PLANE_SERVE] = { PLANE_SERVE, 0 },    [ZERO_PLANE_GRAD] = { PLANE_GRAD, 0 },
        [ZERO_PLANE_STEP] = { PLANE_STEP, 0 },      [ZERO_PLANE_SET] = { PLANE_SET, 0 },
};
enum { PLANES = sizeof(planes) / sizeof(*planes) };

struct plane plane_from(uint32_t number)
{
        return number < PLANES ? planes[number] : (struct plane){ PLANE_NONE, 0 };
}

uint32_t plane_number(struct plane plane)
{
        for (uint32_t i = 0; i < PLANES; i++)
                if (planes[i].kind == plane.kind && planes[i].index == plane.index)
                        return i;
        return 0;
}

uint64_t plane_bytes(struct plane plane, enum zero_dtype dtype, uint64_t n)
{
        if (plane.kind == PLANE_STEP || plane.kind == PLANE_SET)
                return n * sizeof(uint64_t);
        bool narrow = plane.kind == PLANE_SERVE || plane.kind == PLANE_GRAD;

        return dtype_bytes(narrow ? dtype : ZERO_FP32, n);
}
