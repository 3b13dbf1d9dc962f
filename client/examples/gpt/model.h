/*
 * The transformer: forward and backward over a batch of sequences, group by group through a seam.
 */
#pragma once

#include "seam.h"
#include "spec.h"

struct gpt;

/* Sequences side by side; inputs and targets are [sequences][context] bytes. */
struct gpt_batch {
        uint32_t sequences;
        const uint8_t *inputs, *targets;
};

/* Memory for the activations of up to `sequences` sequences.  parts: micro-batches that go layer by
 * layer together; 0: one by one.  spec must outlive the model.  Returns 0 or -ENOMEM. */
int gpt_new(const struct gpt_spec *spec, uint32_t sequences, uint32_t parts, struct gpt **ret_gpt);
void gpt_free(struct gpt *gpt);

/* Forward only: the mean loss, nats per byte.  Returns what the seam returned. */
int gpt_evaluate(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batch,
                 double *ret_loss);
/* Forward and backward of one micro-batch, or of all `parts`: adds the gradient of scale times each
 * mean loss, and pushes every group.  Returns the sum of the mean losses. */
int gpt_train(struct gpt *gpt, struct seam *seam, const struct gpt_batch *batches, double scale,
              bool last, double *ret_loss);
/* [sequences][context][256] of the last gpt_evaluate(). */
const real *gpt_logits(const struct gpt *gpt);
