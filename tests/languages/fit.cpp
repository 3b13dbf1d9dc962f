// Fits w to 0, 1/N, 2/N, ... as one of the ranks that the environment names: C++17, by zero.h alone.
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <zero.h>

static zero_client *client;

static void ok(int status)
{
        if (status == ZERO_OK)
                return;
        std::fprintf(stderr, "%s: %s\n", zero_status_name(status), zero_error(client));
        std::exit(1);
}

int main()
{
        constexpr int n = 1000, steps = 300;
        const uint64_t shape[] = { n };
        const std::vector<float> first(n, 0.25F);
        const void *values[] = { first.data() };
        zero_set sets[] = { ZERO_ADAMW(0.01), ZERO_ADAM(0.01), ZERO_LION(0.01), ZERO_SGD(0.01),
                            ZERO_SGD_MOMENTUM(0.01, 0.9) };
        zero_options options{};
        zero_tensor w{};
        zero_step_options step{};
        zero_layout *layout;
        uint32_t group, tensor;
        const void *view;
        void *grad;

        if (sets[2].lion.beta2 != 0.99 || sets[4].sgd.momentum != 0.9)
                return 1;
        w.name = "w";
        w.ndim = 1;
        w.shape = shape;
        step.sets = sets;
        step.n_sets = 1;
        ok(zero_layout_new(&layout));
        ok(zero_layout_group(layout, "all", ZERO_FP32, nullptr, 0, 0, &group));
        ok(zero_layout_tensor(layout, group, &w, &tensor));
        ok(zero_connect(&options, &client));
        ok(zero_attach(client, layout, nullptr));
        ok(zero_first_values(client, values));
        for (;;) {
                const uint64_t made = zero_steps(client);
                double loss = 0;

                ok(zero_fetch(client, group, &view));
                ok(zero_grad(client, group, &grad));
                for (int i = 0; i < n; i++) {
                        const float d = static_cast<const float *>(view)[i] - static_cast<float>(i) / n;

                        static_cast<float *>(grad)[i] = d;
                        loss += d * d / 2;
                }
                if (made == 0 || made >= steps)
                        std::printf("step %d loss %.6f\n", static_cast<int>(made), loss);
                if (made >= steps)
                        break;
                ok(zero_push(client, group, nullptr, true, nullptr));
                ok(zero_step(client, &step, nullptr));
        }
        zero_layout_free(layout);
        zero_close(client);
}
