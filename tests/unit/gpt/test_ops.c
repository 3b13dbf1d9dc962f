/* The fp32 operations: the exponential's accuracy, and what the vector code must keep. */
#include <criterion/criterion.h>

#include "ops.h"
#include "random.h"

Test(gpt_ops, exp_is_accurate_over_its_range)
{
        for (float x = -86; x < 88; x += 0.0173f) {
                double expected = exp((double)x);
                cr_assert(fabs((double)real_exp(x) - expected) < 3e-7 * expected, "at %g", x);
        }
}

Test(gpt_ops, exp_saturates_and_stays_finite)
{
        cr_assert(real_exp(-1e30f) >= 0 && real_exp(-1e30f) < 1e-37f);
        cr_assert(isfinite(real_exp(1e30f)));
        cr_assert_eq(real_exp(0), 1);
}

Test(gpt_ops, softmax_rows_sum_to_one_and_hide_later_columns)
{
        enum { ROWS = 5, COLUMNS = 13 };
        float scores[ROWS][COLUMNS];
        for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < COLUMNS; i++)
                        scores[r][i] = (float)(30 * random_normal((uint64_t)r, (uint64_t)i));
        softmax_forward(ROWS, COLUMNS, COLUMNS, 9, scores[0]);
        for (int r = 0; r < ROWS; r++) {
                double sum = 0;
                for (int i = 0; i < COLUMNS; i++) {
                        sum += (double)scores[r][i];
                        cr_assert(i < 9 + r || scores[r][i] == 0);
                }
                cr_assert_float_eq(sum, 1, 1e-6);
        }
}

Test(gpt_ops, cross_entropy_of_equal_logits_is_the_log_of_their_number)
{
        float logits[2 * 256] = { 0 };
        uint8_t targets[2] = { 3, 255 };
        cr_assert_float_eq(cross_entropy(2, 256, logits, targets) / 2, log(256), 1e-5);
}

Test(gpt_ops, cross_entropy_survives_large_logits)
{
        float logits[256] = { [7] = 1e4f };
        uint8_t right = 7, wrong = 8;
        cr_assert_float_eq(cross_entropy(1, 256, logits, &right), 0, 1e-6);
        cr_assert_float_eq(cross_entropy(1, 256, logits, &wrong), 1e4, 1);
}

Test(gpt_ops, layernorm_gives_mean_bias_and_deviation_weight)
{
        enum { WIDTH = 37 };
        float x[WIDTH], weight[WIDTH], bias[WIDTH], out[WIDTH], mean, rstd;
        for (int i = 0; i < WIDTH; i++) {
                x[i] = (float)(3 + 5 * random_normal(2, (uint64_t)i));
                weight[i] = 2;
                bias[i] = 1;
        }
        layernorm_forward(1, WIDTH, x, weight, bias, out, &mean, &rstd);
        double sum = 0, squares = 0;
        for (int i = 0; i < WIDTH; i++)
                sum += (double)out[i];
        for (int i = 0; i < WIDTH; i++)
                squares += pow((double)out[i] - sum / WIDTH, 2);
        cr_assert_float_eq(sum / WIDTH, 1, 1e-5);
        cr_assert_float_eq(sqrt(squares / WIDTH), 2, 1e-4);
}
