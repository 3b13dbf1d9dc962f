/* Conversions: exhaustive over all 16-bit values, and rounding against a reference in double. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "layouts.h"
#include "proto/dtype.h"

struct format {
        uint16_t (*narrow)(float x);
        float (*widen)(uint16_t x);
        int digits; /* of the significand, the hidden one included */
        int least;  /* exponent of the smallest normal number */
        uint16_t infinity;
        double overflow; /* the power of two where infinity stands */
};

static const struct format bf16 = {
        dtype_bf16_from_fp32, dtype_fp32_from_bf16, 8, -126, 0x7f80, 0x1p128
};
static const struct format fp16 = {
        dtype_fp16_from_fp32, dtype_fp32_from_fp16, 11, -14, 0x7c00, 0x1p16
};

static uint32_t bits_of(float x)
{
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        return bits;
}

static float float_of(uint32_t bits)
{
        float x;
        memcpy(&x, &bits, sizeof(x));
        return x;
}

/* x rounded to the format, ties to even: as a number. */
static double reference(const struct format *f, float x)
{
        int exponent;
        if (x == 0 || isinf(x))
                return x;
        frexp(x, &exponent);
        exponent = (exponent - 1 < f->least ? f->least : exponent - 1) - (f->digits - 1);
        double rounded = ldexp(nearbyint(ldexp(x, -exponent)), exponent);
        return fabs(rounded) >= f->overflow ? copysign(INFINITY, rounded) : rounded;
}

/* The value of a 16-bit pattern, from its definition. */
static double value_of(const struct format *f, uint32_t x)
{
        int fraction_bits = f->digits - 1;
        uint32_t fraction = x & ((1u << fraction_bits) - 1);
        int exponent = (int)((x & 0x7fff) >> fraction_bits);
        double magnitude = exponent ? ldexp((1u << fraction_bits) + fraction,
                                            exponent - 1 + f->least - fraction_bits)
                                    : ldexp(fraction, f->least - fraction_bits);
        return x & 0x8000 ? -magnitude : magnitude;
}

static bool is_nan(const struct format *f, uint32_t x)
{
        return (x & 0x7fff) > f->infinity;
}

static void check_widening(const struct format *f)
{
        for (uint32_t x = 0; x <= 0xffff; x++) {
                float wide = f->widen((uint16_t)x);
                double expected = (x & 0x7fff) == f->infinity ? (x & 0x8000 ? -INFINITY : INFINITY)
                                                              : value_of(f, x);
                if (is_nan(f, x))
                        cr_assert(isnan(wide), "%#x", x);
                else
                        cr_assert(wide == expected, "%#x", x);
                cr_assert_eq(bits_of(wide) >> 31, x >> 15, "sign of %#x", x);
        }
}

Test(dtype, bf16_widens_to_its_value)
{
        check_widening(&bf16);
}

Test(dtype, fp16_widens_to_its_value)
{
        check_widening(&fp16);
}

static void check_round_trip(const struct format *f)
{
        uint16_t quiet = (uint16_t)(1u << (f->digits - 2));

        for (uint32_t x = 0; x <= 0xffff; x++) {
                uint16_t expected = (uint16_t)(is_nan(f, x) ? x | quiet : x);
                cr_assert_eq(f->narrow(f->widen((uint16_t)x)), expected, "%#x", x);
        }
}

Test(dtype, bf16_survives_the_way_through_fp32)
{
        check_round_trip(&bf16);
}

Test(dtype, fp16_survives_the_way_through_fp32)
{
        check_round_trip(&fp16);
}

/* Between x and its neighbour x + 1: the middle goes to the even one, the rest to the nearer. */
static void check_border(const struct format *f, uint32_t x)
{
        double above = x + 1 == f->infinity ? f->overflow : value_of(f, x + 1);
        float middle = (float)((value_of(f, x) + above) / 2);

        cr_assert_eq(f->narrow(middle), x + (x & 1), "middle above %#x", x);
        cr_assert_eq(f->narrow(-middle), 0x8000 | (x + (x & 1)), "middle below -%#x", x);
        cr_assert_eq(f->narrow(float_of(bits_of(middle) - 1)), x, "before the middle of %#x", x);
        cr_assert_eq(f->narrow(float_of(bits_of(middle) + 1)), x + 1, "past the middle of %#x", x);
}

static void check_borders(const struct format *f)
{
        for (uint32_t x = 0; x < f->infinity; x++)
                check_border(f, x);
}

Test(dtype, bf16_rounds_to_nearest_with_ties_to_even_at_every_border)
{
        check_borders(&bf16);
}

Test(dtype, fp16_rounds_to_nearest_with_ties_to_even_at_every_border)
{
        check_borders(&fp16);
}

static void check_random(const struct format *f, uint64_t seed)
{
        struct rng rng = { seed };

        for (int i = 0; i < 1000000; i++) {
                float x = float_of((uint32_t)rng_next(&rng));
                if (isnan(x))
                        continue;
                float back = f->widen(f->narrow(x));
                cr_assert(back == reference(f, x), "%a", x);
                cr_assert_eq(signbit(back), signbit(x), "sign of %a", x);
        }
}

Test(dtype, bf16_agrees_with_the_reference_on_random_values)
{
        check_random(&bf16, 1);
}

Test(dtype, fp16_agrees_with_the_reference_on_random_values)
{
        check_random(&fp16, 2);
}

static void check_nan(const struct format *f)
{
        uint16_t quiet = (uint16_t)(f->infinity | 1u << (f->digits - 2));

        for (uint32_t fraction = 1; fraction < 0x800000; fraction += 97) {
                uint16_t positive = f->narrow(float_of(0x7f800000 | fraction));
                uint16_t negative = f->narrow(float_of(0xff800000 | fraction));
                cr_assert_eq(positive & quiet, quiet, "%#x", fraction);
                cr_assert_eq(negative, positive | 0x8000, "%#x", fraction);
        }
}

Test(dtype, nan_becomes_a_quiet_bf16_nan_of_the_same_sign)
{
        check_nan(&bf16);
}

Test(dtype, nan_becomes_a_quiet_fp16_nan_of_the_same_sign)
{
        check_nan(&fp16);
}

Test(dtype, overflow_goes_to_infinity)
{
        cr_assert_eq(dtype_fp16_from_fp32(65519.996f), 0x7bff);
        cr_assert_eq(dtype_fp16_from_fp32(65520.0f), 0x7c00);
        cr_assert_eq(dtype_fp16_from_fp32(-3e38f), 0xfc00);
        cr_assert_eq(dtype_bf16_from_fp32(0x1.fffffep127f), 0x7f80);
        cr_assert_eq(dtype_bf16_from_fp32(-INFINITY), 0xff80);
}

Test(dtype, only_the_listed_dtypes_are_valid)
{
        for (uint32_t d = 0; d < 1000; d++)
                cr_assert_eq(dtype_valid(d), d == ZERO_FP32 || d == ZERO_BF16 || d == ZERO_FP16);
        cr_assert(!dtype_valid(UINT32_MAX));
}

Test(dtype, types_of_bytes_are_others_and_kept_in_words_of_four)
{
        for (uint32_t d = 0; d < 1000; d++) {
                cr_assert_eq(dtype_is_bytes(d), d >= ZERO_INT8 && d <= ZERO_BOOL);
                if (dtype_is_bytes(d))
                        cr_assert_eq(dtype_bytes((enum zero_dtype)d, 3), 12);
        }
        cr_assert_str_eq(dtype_name(ZERO_UINT8), "uint8");
        cr_assert_str_eq(dtype_name(ZERO_FP8_E5M2), "fp8-e5m2");
}

Test(dtype, sizes_and_names)
{
        cr_assert_eq(dtype_bytes(ZERO_FP32, 3), 12);
        cr_assert_eq(dtype_bytes(ZERO_BF16, 3), 6);
        cr_assert_eq(dtype_bytes(ZERO_FP16, 3), 6);
        cr_assert_str_eq(dtype_name(ZERO_FP32), "fp32");
        cr_assert_str_eq(dtype_name(ZERO_BF16), "bf16");
        cr_assert_str_eq(dtype_name(ZERO_FP16), "fp16");
        cr_assert_str_eq(dtype_name((enum zero_dtype)77), "unknown");
}
