#!/bin/sh
# Prolog of Slurm on each node: the job begins when the node's zerod takes ranks.
#
#   prolog.sh [OPTIONS]   # a file; default /etc/zerod/slurm.sh
#
# Starts zerod if it does not answer, and takes it back into service if epilog.sh has drained it.  Where that
# fails Slurm drains the node, with the reason, and starts the job elsewhere. README.md has the options.
set -u
# shellcheck source=deploy/slurm/common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"

fail() {
        say "$*"
        # the first reason counts: without it Slurm's "Prolog error"
        within "$ask_s" scontrol update "nodename=$SLURMD_NODENAME" state=drain "reason=zerod: $*"
        exit 1
}

start_zerod() {
        said=$state_dir/start.log
        deadline=$(($(now) + start_s))
        say "starts zerod: $answer"
        # a daemon of its own keeps neither the lock nor a pipe
        within "$start_s" sh -c "$start" >"$said" 2>&1 9>&-
        status=$?
        [ "$status" != 124 ] || fail "'$start' has not ended after $start_s s"
        [ "$status" = 0 ] || fail "'$start' failed with $status: $(tail -n 1 "$said")"
        until ready; do
                [ "$(now)" -lt "$deadline" ] || fail "not ready $start_s s after '$start': $answer"
                sleep 0.2
        done
        say "node $node is ready"
}

undrain_node() {
        [ -e "$drained" ] || fail "node $node is drained: zeroctl undrain $node"
        ask undrain "$node" || fail "$answer"
        # ranks need no shards on their node, and those of the job's other nodes, which may be there already, would
        # wait while the owners change
        say "node $node takes ranks again; zeroctl add-node $node gives it shards"
}

# A node that loses its power runs no epilogs.
remove_records_of_earlier_boots() {
        for found in "$state_dir"/job-*; do
                case $found in
                *."$boot") ;;
                *) rm -f "$found" ;;
                esac
        done
}

[ -z "$broken" ] || fail "$broken"
wanted || exit 0
(umask 077 && mkdir -p "$state_dir") || fail "cannot make $state_dir"
# two jobs may begin at once
touch "$state_dir/lock" || fail "cannot write $state_dir/lock"
exec 9>"$state_dir/lock"
flock -w $((start_s + 30)) 9 || fail "another prolog has been at it for $((start_s + 30)) s"
remove_records_of_earlier_boots
ready || start_zerod
[ "$node_drained" = false ] || undrain_node
rm -f "$drained"
echo "${SLURM_JOB_RESTART_COUNT:-}" >"$record" || fail "cannot write $record"
