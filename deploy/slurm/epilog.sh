#!/bin/sh
# Epilog of Slurm on each node: what becomes of the states of a job that has ended.
#
#   epilog.sh [OPTIONS]   # a file; default /etc/zerod/slurm.sh
#
# They stay, unless the user has asked for their end (sbatch --comment=zerod-drop), the job has not failed and
# Slurm does not start it again.  With drain=yes a node that Slurm drains is drained in zerod too.  Never
# fails, for Slurm would drain the node. README.md has the options.
set -u
# shellcheck source=deploy/slurm/common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"

drop_states() {
        restarts=$(cat "$record" 2>/dev/null)
        rm -f "$record"
        case " ${SLURM_JOB_COMMENT:-} " in
        *' zerod-drop '*) ;;
        *) return ;;
        esac
        if [ "${SLURM_JOB_EXIT_CODE:-0}" != 0 ]; then
                say 'states stay: the job has failed'
                return
        fi
        # while a job that it will start again ends, Slurm has counted that start already
        starts=$(within "$ask_s" scontrol -o show job "$SLURM_JOB_ID" |
                sed -n "s/^JobId=$SLURM_JOB_ID .* Restarts=\([0-9]*\) .*/\1/p")
        if [ -z "$restarts" ] || [ "$restarts" != "$starts" ]; then
                say 'states stay: Slurm starts the job again, or does not say whether it does'
                return
        fi
        # as the user, who may drop nobody else's; the first node drops for all
        answer=$(within $((ask_s + 5)) setpriv --reuid "$SLURM_JOB_UID" --regid "$SLURM_JOB_GID" --clear-groups \
                zeroctl --timeout "$ask_s" drop "slurm-$SLURM_JOB_ID" 2>&1)
        say "$answer"
}

# Whether Slurm drains the node and no other job is left on it.
slurm_drains() {
        case $(within "$ask_s" scontrol -o show node "$SLURMD_NODENAME" | sed 's/.* State=\([^ ]*\) .*/\1/') in
        IDLE*DRAIN*) return 0 ;;
        *) return 1 ;;
        esac
}

drain_node() {
        [ "$drain" = yes ] && slurm_drains || return 0
        ready && [ "$node_drained" = false ] || return 0
        touch "$drained" || say "the next prolog will not take the node back: $drained cannot be written"
        say "drains node $node"
        answer=$(within $((move_s + 5)) zeroctl --timeout "$move_s" drain "$node" 2>&1)
        say "$answer"
}

[ -z "$broken" ] || say "does nothing: $broken"
[ -z "$broken" ] && wanted || exit 0
drop_states
drain_node
exit 0
