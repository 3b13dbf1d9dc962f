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

static int run(struct ctl *ctl)
{
        json_t *answer, *peer;
        bool all_up = true;
        size_t i;
        int r = ctl_ask(ctl, "ping", &answer);

        if (r != CTL_OK)
                return r;
        json_array_foreach(json_object_get(answer, "peers"), i, peer) all_up &=
                field_true(peer, "up");
        r = ctl_show(ctl, answer, show);
        return all_up ? r : CTL_FAILED;
}

const struct command command_ping = {
        .name = "ping",
        .summary = "round trip to every peer; fails if one is down",
        .description = "The round trip from this node's daemon to every peer. Exits with 1 if a "
                       "peer is down.",
        .run = run,
};
