/* zeroctl ping: the round trip from this node's daemon to every peer. */
#include "ctl.h"

#include "table.h"
#include "units.h"

static void show(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        struct table t;
        json_t *peer;
        size_t i;

        if (json_array_size(json_object_get(answer, "peers")) == 0)
                fputs("no peers\n", out);
        table_init(&t, "NODE|STATE|>ROUND TRIP");
        json_array_foreach(json_object_get(answer, "peers"), i, peer)
        {
                bool up = field_true(peer, "up");

                table_add(&t, PAINT_NONE, "%s", field_text(peer, "node"));
                table_add(&t, up ? PAINT_GOOD : PAINT_BAD, "%s", up ? "up" : "down");
                table_add(&t, PAINT_NONE, "%s",
                          up ? unit_seconds(field_number(peer, "round_trip_s")).text : "-");
        }
        table_print(&t, out, ctl->colour);
        table_deinit(&t);
}

const struct command command_ping = { "ping", NULL, "round trip to every peer", show, NULL };
