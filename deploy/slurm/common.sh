# What prolog.sh and epilog.sh share: options and questions to zerod.  Sourced by sh, not run.
#
# Rule: every wait has a deadline, for Slurm itself sets none.
# shellcheck shell=sh disable=SC2034 # prolog.sh and epilog.sh use what is set here

# slurmd passes no PATH
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# ---- options: README.md -------------------------------------------------------

start='systemctl start zerod.service'
start_s=120
partitions=
drain=no
move_s=300
ask_s=10
state_dir=/var/lib/zerod-slurm
options=${1:-/etc/zerod/slurm.sh}
broken= # why the file cannot be read; to read it nevertheless would end sh without a word
[ ! -e "$options" ] || broken=$(sh -n "$options" 2>&1)
# shellcheck source=/dev/null
[ -n "$broken" ] || [ ! -e "$options" ] || . "$options"

read -r boot </proc/sys/kernel/random/boot_id
record=$state_dir/job-$SLURM_JOB_ID.$boot # how often Slurm had started the job again when it began
drained=$state_dir/drained                # is there if the epilog has drained the node

# ---- what both do --------------------------------------------------------------

say() {
        echo "$SLURMD_NODENAME, job $SLURM_JOB_ID: $*" >&2
        logger -t "zerod-slurm[$$]" -- "$SLURMD_NODENAME, job $SLURM_JOB_ID: $*" 2>/dev/null
}

# Whether this job's partition is one of zerod's.
wanted() {
        case " ${partitions:-$SLURM_JOB_PARTITION} " in
        *" $SLURM_JOB_PARTITION "*) return 0 ;;
        *) return 1 ;;
        esac
}

# Seconds on a clock that only goes forward.
now() {
        read -r up _ </proc/uptime
        echo "${up%.*}"
}

# within SECONDS COMMAND...
within() {
        within_s=$1
        shift
        timeout -k 5 "$within_s" "$@" </dev/null
}

# ask COMMAND...: of zeroctl.  What it says is in $answer.
ask() {
        answer=$(within $((ask_s + 5)) zeroctl --timeout "$ask_s" "$@" 2>&1)
}

# Whether zerod answers; then $node is its name, $node_drained true or false.
ready() {
        ask --json status || return 1
        node=$(printf '%s\n' "$answer" | sed -n 's/^  "node": "\(.*\)",$/\1/p')
        node_drained=$(printf '%s\n' "$answer" | sed -n 's/^  "drained": \(.*\),$/\1/p')
}
