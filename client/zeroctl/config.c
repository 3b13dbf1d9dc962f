/* zeroctl config: the options in effect, and where each comes from. */
#include "ctl.h"

#include "table.h"

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        struct table t;
        json_t *option;
        size_t i;

        table_init(&t, "OPTION|VALUE|SOURCE|MEANING");
        json_array_foreach(json_object_get(answer, "options"), i, option)
        {
                table_add(&t, PAINT_NONE, "%s", field_text(option, "name"));
                table_add(&t, PAINT_NONE, "%s", field_text(option, "value"));
                table_add(&t, PAINT_NONE, "%s", field_text(option, "source"));
                table_add(&t, PAINT_NONE, "%s", field_text(option, "doc"));
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

const struct command command_config = {
        .name = "config",
        .summary = "options in effect and their source",
        .description = "The daemon's options in effect, and where each comes from.",
        .show = show,
};
