/* zeroctl grants, grant and revoke: other users who may follow a job. */
#include "users.h"

#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

struct user_name user_name(double uid)
{
        const struct passwd *known = getpwuid((uid_t)uid);
        struct user_name ret;

        if (known)
                snprintf(ret.text, sizeof ret.text, "%s", known->pw_name);
        else
                snprintf(ret.text, sizeof ret.text, "%.0f", uid);
        return ret;
}

void show_grants(const struct ctl *ctl, FILE *out, const json_t *answer)
{
        const json_t *users = json_object_get(answer, "users");
        json_t *uid;
        size_t i;

        fprintf(out, "job %s: %s", field_text(answer, "job"),
                json_array_size(users) ? "other users who may follow it: "
                                       : "no other user may follow it");
        json_array_foreach(users, i, uid)
                fprintf(out, "%s%s", i ? ", " : "", user_name(json_number_value(uid)).text);
        fputc('\n', out);
}

/* Names come first: a name may consist of digits. */
static int find_user(const char *command, const char *user, json_int_t *ret_uid)
{
        const struct passwd *known = getpwnam(user);
        unsigned long long uid;
        char *end;

        if (known) {
                *ret_uid = known->pw_uid;
                return CTL_OK;
        }
        errno = 0;
        uid = strtoull(user, &end, 10);
        if (user[0] >= '0' && user[0] <= '9' && !*end && !errno && uid < UINT32_MAX) {
                *ret_uid = (json_int_t)uid;
                return CTL_OK;
        }
        ctl_error("%s: this machine knows no user '%s': name one, or give the user's number",
                  command, user);
        return CTL_FAILED;
}

int grants_change(struct ctl *ctl)
{
        json_t *wish, *answer;
        json_int_t uid;
        char *text;
        int r = find_user(ctl->command, ctl->file, &uid);

        if (r != CTL_OK)
                return r;
        wish = json_pack("{s:s,s:I}", "job", ctl->argument, "user", uid);
        text = json_dumps(wish, JSON_COMPACT);
        json_decref(wish);
        if (!text) {
                ctl_error("%s: '%s' must be UTF-8", ctl->command, ctl->argument);
                return CTL_FAILED;
        }
        r = ctl_ask_about(ctl, ctl->command, text, &answer);
        free(text);
        return r == CTL_OK ? ctl_show(ctl, answer, show_grants) : r;
}

const struct command command_grants = {
        .name = "grants",
        .arguments = "JOB",
        .summary = "which other users may follow a job",
        .description = "Prints the users whom the job's owner lets follow it. Only the owner and "
                       "root may ask.",
        .show = show_grants,
};
