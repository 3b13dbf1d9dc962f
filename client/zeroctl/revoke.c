/* zeroctl revoke: a user may no more follow a job. */
#include "users.h"

const struct command command_revoke = {
        .name = "revoke",
        .arguments = "JOB USER",
        .summary = "end another user's grant to follow a job",
        .description =
                "Ends the grant of <USER>, a name or a number. The waiting calls of that user's "
                "readers fail at once, and their connections end, on each node that hears of it; "
                "a node that is away hears of it when it comes up.\n"
                "What a reader has mapped stays readable: the versions that were in its node's "
                "memory. Later versions come into other memory. Only the job's owner and root may "
                "revoke.",
        .run = grants_change,
};
