#!/bin/bash
# Trains a small model with two zerod nodes and four trainers on this machine.
#
#   deploy/quickstart.sh [--steps N] [TEXTFILE]
#
# Installs the packages that are missing, builds, trains, shows what the nodes hold, and
# leaves nothing behind but the build tree.  The default text is that of the fortunes package.
# Exit status: 0 if the model predicts the text better than a byte-bigram model, 1 if it does
# not or anything fails, 2 for a wrong command line, 128 + signal when interrupted.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

tree=$root/build
gpt=$tree/client/examples/gpt/zerod-gpt

steps=500
job=quickstart
train_ms=600000 # of the training as a whole
end_ms=30000    # between the end of rank 0 and that of the others
failure='it ended early' # what the last line says unless training ends well
success=
trainers=()
nodes_programs "$tree"

fail() {
        failure=$*
        exit 1
}

# ---- the end, whatever brought it --------------------------------------------

finish() {
        local status=$?
        trap '' INT TERM HUP
        stop_all 5000 "${trainers[@]}"
        stop_all "$stop_ms" "${daemons[@]}" || { failure='a daemon does not end' success=; }
        [[ -z $directory ]] || rm -rf -- "$directory"
        if [[ -n $success && $status == 0 ]]; then
                echo "quickstart: ok: $success"
        else
                echo "quickstart: FAILED: $failure"
                ((status)) || status=1
        fi
        exit "$status"
}

interrupted() {
        failure="interrupted by SIG$1"
        exit $((128 + $(kill -l "$1")))
}

# ---- text --------------------------------------------------------------------

# The files of the fortunes package, in an order that does not depend on the locale.
default_text() {
        local file
        dpkg-query -L fortunes | LC_ALL=C sort | while read -r file; do
                [[ $file == /usr/share/games/fortunes/* && -f $file && $file != *.@(dat|u8) ]] || continue
                cat "$file"
        done
}

prepare_text() {
        if [[ -n $text ]]; then
                [[ -f $text && -r $text ]] || fail "$text: no such file, or not readable"
                cp -- "$text" "$directory/text" || fail "cannot copy $text"
                return
        fi
        default_text >"$directory/text"
        (($(stat -c %s "$directory/text") > 1000000)) || fail 'the fortunes package holds less text than expected'
}

# ---- training ----------------------------------------------------------------

start_trainers() {
        local rank node
        for rank in 0 1 2 3; do
                ((rank < 2)) && node=a || node=b
                start "rank-$rank" "$gpt" --data "$directory/text" --job "$job" --socket "$directory/$node.sock" \
                        --rank "$rank" --world-size 4 --local-world-size 2 --stage 3 --threads 1 \
                        --layers 4 --heads 4 --width 128 --context 64 --batch 8 --eval-windows 256 \
                        --lr 3e-3 --steps "$steps" --log-every 25
                trainers+=("$started")
        done
}

trainers_failed() {
        local rank
        for rank in 0 1 2 3; do
                show_log "$directory/rank-$rank.log"
        done
        show_node_logs
        fail "$*; see above"
}

# Repeats what rank 0 has written since, whole lines only.
shown=0
show_progress() {
        local lines=()
        mapfile -t -s "$shown" lines <"$directory/rank-0.log"
        ((${#lines[@]})) || return 0
        printf '%s\n' "${lines[@]}"
        shown=$((shown + ${#lines[@]}))
}

# Ranks other than 0 end in their own time: not early, for none ends before the last step.
check_trainers() {
        local rank
        for rank in 0 1 2 3; do
                alive "${trainers[rank]}" || wait "${trainers[rank]}" || trainers_failed "rank $rank has failed"
        done
}

wait_training() {
        local end=$(($(now_ms) + train_ms))
        while alive "${trainers[0]}"; do
                show_progress
                check_trainers
                nodes_alive
                (($(now_ms) < end)) || trainers_failed "no end after $((train_ms / 1000)) s"
                sleep 0.2
        done
        show_progress
        check_trainers
        wait_ends "$end_ms" "${trainers[@]}" || trainers_failed 'rank 0 has ended, the others have not'
        check_trainers
        trainers=()
}

show_nodes() {
        local node
        for node in "${nodes[@]}"; do
                echo
                "$zeroctl" --socket "$directory/$node.sock" status || fail "zeroctl status of node $node"
                echo
                "$zeroctl" --socket "$directory/$node.sock" shards "$job" || fail "zeroctl shards of node $node"
        done
        echo
}

judge() {
        local log first last
        log=$(<"$directory/rank-0.log")
        [[ $log =~ step\ 0/[0-9]+\ +validation\ loss\ ([0-9.]+) ]] || fail 'rank 0 has not told its first validation loss'
        first=${BASH_REMATCH[1]}
        [[ $log =~ gpt:\ validation\ loss\ ([0-9.]+)\ nats/byte,\ bigram\ ([0-9.]+),\ ([0-9]+)\ steps ]] ||
                fail 'rank 0 has not told its last validation loss'
        last=${BASH_REMATCH[1]}
        local told="validation loss $first -> $last nats/byte (bigram baseline ${BASH_REMATCH[2]}), ${BASH_REMATCH[3]} steps, 2 nodes, 4 trainers"
        awk -v b="$last" -v c="${BASH_REMATCH[2]}" 'BEGIN { exit !(b < c) }' || fail "$told"
        success=$told
}

# ---- in order ----------------------------------------------------------------

text=
parse() {
        while (($#)); do
                case $1 in
                -h | --help)
                        usage
                        exit 0
                        ;;
                --steps)
                        [[ ${2:-} =~ ^[1-9][0-9]{0,6}$ ]] || wrong '--steps needs a number'
                        steps=$2
                        shift
                        ;;
                -*) wrong "$1: no such option" ;;
                *)
                        [[ -z $text ]] || wrong 'one text file only'
                        text=$1
                        ;;
                esac
                shift
        done
}

main() {
        local sets=(build) name
        parse "$@"
        trap finish EXIT
        for name in INT TERM HUP; do
                # shellcheck disable=SC2064 # the name of now
                trap "interrupted $name" "$name"
        done
        # the configuration is what the files say
        for name in $(compgen -e ZEROD_); do
                unset "$name"
        done
        [[ -n $text ]] || sets+=(text)
        packages_install "${sets[@]}" || fail 'packages are missing'
        tree_setup "$tree" buildtype=release examples=enabled || fail 'the build tree could not be made'
        tree_build "$tree" daemon/zerod client/zeroctl/zeroctl client/examples/gpt/zerod-gpt || fail 'the build failed'
        make_directory
        prepare_text
        start_nodes a b
        wait_nodes
        say 'nodes a and b are up; four trainers start'
        start_trainers
        wait_training
        show_nodes
        judge
}

main "$@"
