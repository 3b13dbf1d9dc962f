/* zeroctl undrain: a node that was drained takes ranks again. */
#include "ctl.h"

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "node %s takes ranks again; zeroctl add-node gives it shards\n",
                field_text(answer, "node"));
}

const struct command command_undrain = {
        .name = "undrain",
        .arguments = "NODE",
        .summary = "let ranks come to a drained node again",
        .description =
                "Ends the drain of <NODE>. It takes ranks again; *zeroctl add-node* gives it "
                "shards again.",
        .show = show,
};
