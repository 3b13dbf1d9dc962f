/*
 * The examples of libzero's man pages: a trainer of one layer, which is built and run by the tests.
 *
 * pages.py shows a function under EXAMPLES of the pages that the comment before it names.
 */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <zero.h>

enum { IN = 8, OUT = 4, BATCH = 16, MICRO = 2, STEPS = 100 };

/* zero_error zero_status_name: Ends the process where a call fails, with the cause */
static void must(const struct zero_client *client, int status)
{
        if (status != ZERO_OK)
                errx(1, "%s: %s", zero_status_name(status), zero_error(client));
}

/* zero_layout_new zero_layout_group zero_layout_tensor zero_layout_optimizer: A layout of one group with a trained and a frozen tensor */
static struct zero_layout *make_layout(void)
{
        const struct zero_tensor w = {
                .name = "w", .ndim = 2, .shape = (uint64_t[]){ OUT, IN },
                .init = ZERO_INIT_NORMAL, .init_value = 0.02, .init_seed = 1,
        };
        const struct zero_tensor scale = {
                .name = "scale", .frozen = true, /* ndim 0: a scalar */
                .init = ZERO_INIT_CONSTANT, .init_value = 1,
        };
        struct zero_layout *layout;
        uint32_t group, tensor;

        if (zero_layout_new(&layout))
                errx(1, "out of memory");
        if (zero_layout_group(layout, "layer", ZERO_FP32, NULL, 0, 0, &group) ||
            zero_layout_optimizer(layout, group, "lion") ||
            zero_layout_tensor(layout, group, &w, &tensor) ||
            zero_layout_tensor(layout, group, &scale, &tensor))
                errx(1, "%s", zero_layout_error(layout));
        return layout;
}

/* zero_connect zero_attach zero_layout_free: Joins the job $ZEROD_JOB as rank $RANK of $WORLD_SIZE */
static struct zero_client *join(void)
{
        const struct zero_options options = { 0 };
        struct zero_layout *layout = make_layout();
        struct zero_client *client = NULL;

        must(client, zero_connect(&options, &client));
        must(client, zero_attach(client, layout, NULL));
        zero_layout_free(layout); /* zero_attach() has copied it */
        return client;
}

/* zero_first_values zero_layout_find: Rank 0 gives a new job its first values, and all ranks wait for them */
static void give_first_values(struct zero_client *client)
{
        static const float scale = 0.5F;
        const void *values[2] = { NULL, NULL }; /* w is made by its seed */
        uint32_t tensor;

        if (zero_layout_find(zero_client_layout(client), "scale", &tensor))
                errx(1, "there is no tensor 'scale'");
        values[tensor] = &scale;
        must(client, zero_first_values(client, values));
}

/* Of |scale w x - target|^2 / 2 for one row x, added up. */
static double add_gradient(const float *w, float scale, unsigned row, float *grad)
{
        double loss = 0;

        for (unsigned o = 0; o < OUT; o++) {
                float error = o == row % OUT ? -1.0F : 0.0F;

                for (unsigned i = 0; i < IN; i++)
                        error += scale * w[o * IN + i] * (i == row % IN);
                grad[o * IN + row % IN] += scale * error;
                loss += error * error / 2;
        }
        return loss;
}

/* zero_fetch zero_grad zero_push zero_release zero_layout_offset: One step of MICRO micro-batches, which are summed: each gradient is divided for the mean */
static int compute(struct zero_client *client, uint64_t version, double *ret_loss)
{
        const struct zero_layout *layout = zero_client_layout(client);
        const uint32_t group = 0, w = 0, scale = 1;
        const void *view;
        void *grad;
        int r = zero_fetch(client, group, &view);

        *ret_loss = 0;
        for (unsigned micro = 0; r == ZERO_OK && micro < MICRO; micro++) {
                const float *of_w = (const float *)view + zero_layout_offset(layout, w);
                const float *of_scale = (const float *)view + zero_layout_offset(layout, scale);
                float *to;

                r = zero_grad(client, group, &grad);
                if (r)
                        return r;
                to = (float *)grad + zero_layout_offset(layout, w);
                for (unsigned i = 0; i < OUT * IN; i++)
                        to[i] = 0;
                for (unsigned row = 0; row < BATCH; row++)
                        *ret_loss += add_gradient(of_w, *of_scale, row + (unsigned)version, to);
                for (unsigned i = 0; i < OUT * IN; i++)
                        to[i] /= MICRO * BATCH;
                r = zero_push(client, group, NULL, micro == MICRO - 1, NULL);
        }
        *ret_loss /= MICRO * BATCH;
        return r ? r : zero_release(client, group, NULL);
}

/* zero_step zero_steps: A loop that goes on where the job stands, and repeats what is aborted */
static void train(struct zero_client *client)
{
        struct zero_set set = ZERO_LION(0.02);
        const struct zero_step_options step = { .sets = &set, .n_sets = 1, .clip_norm = 1 };
        struct zero_result result = { 0 };
        double loss;

        while (zero_steps(client) < STEPS) {
                int r = compute(client, zero_steps(client), &loss);

                if (r == ZERO_OK)
                        r = zero_step(client, &step, &result);
                if (r != ZERO_EABORTED) /* the version says what to repeat */
                        must(client, r);
                if (r == ZERO_OK && result.skips >= 50)
                        errx(1, "%u steps in a row without a finite gradient", result.skips);
        }
}

/* zero_all_reduce: The mean of a loss over all ranks */
static double mean(struct zero_client *client, double loss, unsigned world_size)
{
        must(client, zero_all_reduce(client, "loss", ZERO_REDUCE_SUM, 1, &loss, &loss));
        return loss / world_size;
}

/* zero_get zero_put: Reads a tensor whole, as fp32 */
static float *read_tensor(struct zero_client *client, uint32_t tensor)
{
        uint64_t n = zero_layout_tensor_elements(zero_client_layout(client), tensor);
        float *values = malloc(n * sizeof(*values));

        if (!values)
                errx(1, "out of memory");
        must(client, zero_get(client, tensor, ZERO_PLANE_MASTER, 0, n, values));
        return values;
}

/* zero_query zero_free: Prints the daemon's jobs */
static void show_jobs(struct zero_client *client)
{
        char *json;

        must(client, zero_query(client, "jobs", NULL, &json));
        puts(json);
        zero_free(json);
}

int main(void)
{
        struct zero_client *client = join();
        const char *world_size = getenv("WORLD_SIZE");
        float *w;
        double loss;

        give_first_values(client);
        train(client);
        must(client, compute(client, STEPS, &loss));
        loss = mean(client, loss, world_size ? (unsigned)atoi(world_size) : 1);
        w = read_tensor(client, 0);
        printf("step %d loss %.6f\nw[0] %.3f\n", STEPS, loss, w[0]);
        free(w);
        show_jobs(client);
        zero_close(client);
}
