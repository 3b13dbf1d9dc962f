/* zeroctl set: changes an option of the running daemon. */
#include "ctl.h"

#include <stdlib.h>

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        fprintf(out, "%s = %s\n", field_text(answer, "name"), field_text(answer, "value"));
}

static int run(struct ctl *ctl)
{
        json_t *answer;
        char *wanted;
        int r;

        if (asprintf(&wanted, "%s=%s", ctl->argument, ctl->file) < 0) {
                ctl_error("out of memory");
                return CTL_FAILED;
        }
        r = ctl_ask_about(ctl, "set", wanted, &answer);
        free(wanted);
        return r == CTL_OK ? ctl_show(ctl, answer, show) : r;
}

const struct command command_set = {
        .name = "set",
        .arguments = "OPTION VALUE",
        .summary = "changes an option of the running daemon",
        .description =
                "Changes an option of this node's daemon while it runs, until it starts again or "
                "reloads its configuration (SIGHUP). The options that may change are marked in "
                "zerod.conf(5); the others are refused. Only root and the user zerod runs as may "
                "set options.",
        .run = run,
};
