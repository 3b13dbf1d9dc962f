/* Whether UCX may reach another node. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/fabric/reach.h"

Test(reach, a_host_is_the_same_each_time)
{
        uint8_t a[REACH_HOST], b[REACH_HOST];

        reach_host(a);
        reach_host(b);
        cr_assert_eq(memcmp(a, b, sizeof a), 0);
}

Test(reach, shared_memory_stays_on_the_host)
{
        cr_assert(!reach_across("self,posix,sysv,cma", "self,posix,sysv,cma"));
        cr_assert(!reach_across("", ""));
        cr_assert(!reach_across(",,", ",,"));
        cr_assert(!reach_across("cuda_copy,cuda_ipc", "cuda_copy,cuda_ipc"));
}

Test(reach, both_need_the_same_transport)
{
        cr_assert(reach_across("self,rc_verbs", "ud_verbs,rc_verbs"));
        cr_assert(!reach_across("self,rc_verbs", "self,rc_mlx5"));
        cr_assert(!reach_across("rc_verb", "rc_verbs"));
        cr_assert(!reach_across("rc_verbs", "rc_verb"));
        cr_assert(!reach_across("rc_verbs", ""));
        cr_assert(reach_across("tcp", "posix,tcp"));
}
