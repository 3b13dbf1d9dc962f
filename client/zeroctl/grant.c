/* zeroctl grant: another user may follow a job. */
#include "users.h"

const struct command command_grant = {
        .name = "grant",
        .arguments = "JOB USER",
        .summary = "let another user follow a job",
        .description =
                "Lets the processes of <USER>, a name or a number, follow the job: they read whole "
                "versions of its parameters (*zero_follow*(3)), on each of its nodes, and learn "
                "its layout. They get nothing else of the job. Only the job's owner and root may "
                "grant, to 64 users at most.\n"
                "The grant holds until *zeroctl revoke* or the job's drop. It outlives restarts of "
                "daemons and *zeroctl restore*. The calls of <USER> are charged to <USER>. "
                "No grant is given before all nodes of the cluster were up and knew of grants.",
        .run = grants_change,
};
