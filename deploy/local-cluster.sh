#!/bin/bash
# Runs a command as the ranks of one job, on zerod nodes started for it on this machine.
#
#   zerod-local-cluster [--nodes N] [--ranks N] [--max-restarts N] [--keep] [--tree DIR] COMMAND...
#
#   --nodes N         so many daemons on loopback [1]
#   --ranks N         so many ranks, spread over the nodes [one a node]
#   --max-restarts N  when a rank fails, end them all and start them again, at most so often; the
#                     nodes and what they hold go on [0]
#   --keep            when the ranks have ended, leave the nodes and what they hold until Ctrl-C; needs no
#                     COMMAND
#   --tree DIR        what is built there, instead of what is installed or built in build/
#
# Uses the zerod that is installed with this script; in a checkout, as deploy/local-cluster.sh, the script
# installs the packages that are missing and builds.  A COMMAND that ends in .py is run by
# $ZEROD_PYTHON, else by a Python with PyTorch, made once in the user's cache directory.  Ranks have the
# variables that torchrun sets, and ZEROD_SOCKET, ZEROD_JOB, ZEROD_LIBRARY and PYTHONPATH.  What rank 0
# writes goes through; the others' last lines are shown when one fails.  Everything is ended and removed
# at the end, and with it the job.  Exit status: that of the rank that failed first, 2 for a wrong
# command line, 128 + signal when interrupted.
#
# To look at it meanwhile, from another shell (nodes are a, b, ...; the job is local-cluster):
#
#   zeroctl --socket /dev/shm/zerod-local-cluster.*/a.sock status
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/lib.sh"

node_count=1 rank_count='' max_restarts=0 keep=false tree='' command=()
library= # that zeroctl uses
kept=    # the ranks' status, while the nodes are kept
end_ms=60000 # between the end of one rank and that of the others
port=
ranks=()

fail() {
        say "$*" >&2
        exit 1
}

# ---- the end, whatever brought it --------------------------------------------

finish() {
        local status=$?
        trap '' INT TERM HUP
        # a rank may have processes of its own: its group is ended
        stop_all 5000 "${ranks[@]/#/-}"
        stop_all "$stop_ms" "${daemons[@]}" || say 'a daemon did not end and was killed' >&2
        [[ -z $directory ]] || rm -rf -- "$directory"
        exit "$status"
}

interrupted() {
        exit "${kept:-$((128 + $(kill -l "$1")))}"
}

# ---- ranks -------------------------------------------------------------------

node_of() {
        echo $(($1 * node_count / rank_count))
}

# variables RANK: NAME=VALUE of a rank, one a line.
variables() {
        local rank=$1 node other local_rank=0 local_count=0
        node=$(node_of "$rank")
        for ((other = 0; other < rank_count; other++)); do
                (($(node_of "$other") == node)) || continue
                local_count=$((local_count + 1))
                ((other >= rank)) || local_rank=$((local_rank + 1))
        done
        printf '%s\n' "RANK=$rank" "WORLD_SIZE=$rank_count" "LOCAL_RANK=$local_rank" \
                "LOCAL_WORLD_SIZE=$local_count" MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port" \
                GLOO_SOCKET_IFNAME=lo "ZEROD_SOCKET=$directory/${nodes[node]}.sock" ZEROD_JOB=local-cluster \
                "ZEROD_LIBRARY=$library" \
                "PYTHONPATH=$root/client/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 \
                "OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((jobs > rank_count ? jobs / rank_count : 1))}"
}

# In a session of its own, so that its processes are ended with it, and not longer than this script.
start_rank() {
        local rank=$1 environment
        mapfile -t environment < <(variables "$rank")
        if ((rank)); then
                start "rank-$rank" setsid env "${environment[@]}" "${command[@]}"
        else
                setpriv --pdeathsig TERM setsid env "${environment[@]}" "${command[@]}" </dev/null &
                started=$!
        fi
        ranks+=("$started")
}

show_ranks() {
        local rank
        for ((rank = 1; rank < rank_count; rank++)); do
                show_log "$directory/rank-$rank.log"
        done >&2
}

# Waits until all ranks have ended; the status of the first that failed.
wait_ranks() {
        local i status end=
        local -A left=()
        for i in "${!ranks[@]}"; do
                left[$i]=${ranks[i]}
        done
        while ((${#left[@]})); do
                for i in "${!left[@]}"; do
                        alive "${left[$i]}" && continue
                        wait "${left[$i]}"
                        status=$?
                        unset "left[$i]"
                        ((status == 0)) || return "$status"
                        end=${end:-$(($(now_ms) + end_ms))}
                done
                nodes_alive
                if [[ -n $end ]] && (($(now_ms) > end)); then
                        say "a rank has ended, others have not $((end_ms / 1000)) s later" >&2
                        return 1
                fi
                sleep 0.1
        done
}

run_ranks() {
        local rank status
        port=$(free_ports 1)
        ranks=()
        for ((rank = 0; rank < rank_count; rank++)); do
                start_rank "$rank"
        done
        wait_ranks
        status=$?
        if ((status)); then
                # the others say who is missing, and end by themselves, or are ended
                wait_ends 3000 "${ranks[@]}"
                stop_all 5000 "${ranks[@]/#/-}"
                show_ranks
                say "a rank has ended with status $status" >&2
        fi
        return "$status"
}

# ---- in order ----------------------------------------------------------------

# number OPTION VALUE LEAST MOST
number() {
        if ! [[ $2 =~ ^[0-9]{1,4}$ ]] || ((10#$2 < $3 || 10#$2 > $4)); then
                wrong "$1 is a number from $3 to $4"
        fi
}

parse() {
        while (($#)); do
                case $1 in
                -h | --help)
                        usage
                        exit 0
                        ;;
                --nodes)
                        number "$1" "${2:-}" 1 26
                        node_count=$((10#$2))
                        shift
                        ;;
                --ranks)
                        number "$1" "${2:-}" 1 1024
                        rank_count=$((10#$2))
                        shift
                        ;;
                --max-restarts)
                        number "$1" "${2:-}" 0 1000
                        max_restarts=$((10#$2))
                        shift
                        ;;
                --keep) keep=true ;;
                --tree)
                        [[ -x ${2:-}/daemon/zerod ]] || wrong "--tree: ${2:-nothing} is no build tree with a daemon in it"
                        tree=$(cd "$2" && pwd)
                        shift
                        ;;
                -*) wrong "$1: no such option" ;;
                *)
                        command=("$@")
                        break
                        ;;
                esac
                shift
        done
        ((${#command[@]})) || $keep || wrong 'which command?'
        rank_count=${rank_count:-$node_count}
}

prepare() {
        local python
        if [[ -z $tree && ! -f $root/meson.build ]]; then
                nodes_installed
        elif [[ -z $tree ]]; then
                tree=$root/build
                packages_install build text || fail 'packages are missing'
                tree_setup "$tree" buildtype=release || fail 'the build tree could not be made'
                tree_build "$tree" daemon/zerod client/zeroctl/zeroctl >&2 || fail 'the build failed'
        fi
        [[ -z $tree ]] || nodes_programs "$tree"
        library=$(ldd "$zeroctl" | awk '$1 == "libzero.so.0" && $3 ~ /^\// { print $3 }')
        [[ -n $library ]] || fail "$zeroctl does not find libzero.so.0"
        if [[ ${command[0]:-} == *.py ]]; then
                [[ -r ${command[0]} ]] || wrong "${command[0]}: no such file, or not readable"
                python=${ZEROD_PYTHON:-$(python_environment)} || fail 'no Python with PyTorch'
                command=("$python" "${command[@]}")
        fi
}

# Until a signal, or until a daemon ends.
keep_nodes() {
        kept=$1
        say 'the nodes are kept until Ctrl-C' >&2
        while true; do
                nodes_alive
                sleep 0.5
        done
}

main() {
        local name names restarts=0 status=0
        parse "$@"
        trap finish EXIT
        for name in INT TERM HUP; do
                # shellcheck disable=SC2064 # the name of now
                trap "interrupted $name" "$name"
        done
        prepare
        # the configuration is what the files say
        for name in $(compgen -e ZEROD_); do
                unset "$name"
        done
        make_directory
        mapfile -t names < <(printf '%s\n' {a..z} | head -n "$node_count")
        start_nodes "${names[@]}"
        wait_nodes
        say "sockets $directory/*.sock, for zeroctl --socket" >&2
        while ((${#command[@]})); do
                run_ranks
                status=$?
                ((status && restarts++ < max_restarts)) || break
                say "restart $restarts of $max_restarts" >&2
        done
        ! $keep || keep_nodes "$status"
        exit "$status"
}

main "$@"
