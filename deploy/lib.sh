# What the scripts share: their help, packages, build trees, processes.  Sourced by bash, not run.
#
# Rule: a wait has a deadline, and a process is ended by its id alone.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
self=$(basename "$0" .sh)
self=${self#zerod-}
jobs=$(nproc)

say() {
        printf '%s: %s\n' "$self" "$*"
}

# The comment at the top of the script.
usage() {
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
}

# Ends for a wrong command line.
wrong() {
        echo "$self: $*; see --help" >&2
        exit 2
}

# Milliseconds on a clock that only goes forward.
now_ms() {
        local up
        read -r up _ </proc/uptime
        echo $((10#${up/./} * 10))
}

# Where a directory of state files may be made: a tmpfs, if there is one.
memory_directory() {
        if [[ $(stat -f -c %T /dev/shm 2>/dev/null) == tmpfs && -w /dev/shm ]]; then
                echo /dev/shm
        else
                echo "${TMPDIR:-/tmp}"
        fi
}

# ---- packages ----------------------------------------------------------------

# The packages of the given sets that are not installed.
packages_missing() {
        local set package state
        while read -r set package; do
                [[ " $* " == *" $set "* ]] || continue
                # shellcheck disable=SC2016 # ${Status} is dpkg-query's
                state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) || state=
                [[ $state == 'install ok installed' ]] || echo "$package"
        done <"$root/deploy/packages"
}

# As root, by sudo if need be; apt-get asks nothing.
as_root() {
        local become=()
        if ((EUID)); then
                become=(sudo)
                # nobody is there to type a password
                [[ -t 0 ]] || become+=(-n)
        fi
        "${become[@]}" env DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

apt_install() {
        as_root apt-get install -y -q --no-install-recommends "$@"
}

# Installs what is missing of the given sets.  $packages_installed tells whether anything was.
packages_install() {
        local missing
        packages_installed=false
        if ! command -v dpkg-query >/dev/null; then
                say "no dpkg here: install by hand what deploy/packages names" >&2
                return
        fi
        mapfile -t missing < <(packages_missing "$@")
        ((${#missing[@]})) || return 0
        if ((EUID)) && ! command -v sudo >/dev/null; then
                say "these packages are missing: ${missing[*]}" >&2
                say "neither root nor sudo is at hand; as root, run: apt-get install ${missing[*]}" >&2
                return 1
        fi
        say "installing ${missing[*]}"
        # package lists may be absent, or older than the archive
        if ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || ! apt_install "${missing[@]}"; then
                if ! as_root apt-get update -q || ! apt_install "${missing[@]}"; then
                        say "apt-get could not install ${missing[*]}" >&2
                        return 1
                fi
        fi
        packages_installed=true
}

# ---- the cache directory -----------------------------------------------------
#
# NAME-HASH is made once and used by all checkouts that need this version of it; whoever uses it writes NAME-HASH.lock.

cache=${XDG_CACHE_HOME:-${HOME:-~}/.cache}/zerod
unused_days=30 # until a version is removed

# cache_lock DIR SECONDS: makes DIR's parent, and holds DIR's lock until $cache_lock is closed.  Removes other versions
# that nobody uses.
cache_lock() {
        if ! mkdir -p "${1%/*}" 2>/dev/null || ! { exec {cache_lock}>"$1.lock"; } 2>/dev/null; then
                say "$1 belongs into ${1%/*}, which cannot be written" >&2
                return 1
        fi
        flock -w 1 "$cache_lock" || say "waiting for another run, which has $1.lock" >&2
        flock -w "$2" "$cache_lock" || {
                say "another run has had $1.lock for $2 s" >&2
                return 1
        }
        cache_remove_unused "$1"
}

# cache_remove_unused DIR: the other versions of DIR.  Their locks stay, for others may wait for them.
cache_remove_unused() {
        local dir lock
        for dir in "${1%-*}"-????????????; do
                [[ -d $dir && $dir != "$1" ]] || continue
                # without a lock, it is from before there were any: its time begins now
                exec {lock}>>"$dir.lock"
                if flock -n "$lock" && [[ $(find "$dir.lock" -mtime "+$unused_days") ]]; then
                        say "removing $dir, unused for $unused_days days" >&2
                        # the marker first: half a directory must not look whole
                        rm -f -- "$dir"/{complete,built} && rm -rf -- "$dir"
                fi
                exec {lock}>&-
        done
}

# ---- the Python environment --------------------------------------------------

python_room_mb=1000 torch_room_mb=10000 # while it is made; 6 GB of it stay with PyTorch

# python_directory FILE: where the environment of these requirements and this python3 is: python-HASH, or
# NAME-HASH for python-requirements-NAME.
python_directory() {
        local name=${1##*/python-requirements} hash
        hash=$({
                cat "$1"
                python3 -c 'import sys; print(sys.version)'
        } | sha256sum) || return 1
        name=${name#-}
        echo "$cache/${name:-python}-${hash:0:12}"
}

# python_make DIR FILE: leaves the marker DIR/complete as the last thing.
python_make() {
        local dir=$1 requirements=$2 room=$python_room_mb free
        ! grep -q '^torch==' "$requirements" || room=$torch_room_mb
        free=$(df --output=avail -m "${dir%/*}" | tail -n 1)
        if ((free < room)); then
                say "an environment of Python needs $room MB in ${dir%/*}, which has $((free)) MB" >&2
                return 1
        fi
        say "making the environment of ${requirements##*/}, $dir, once, of the size that the file says" >&2
        rm -rf -- "$dir"
        # TMPDIR, for large downloads do not belong into a tmpfs
        {
                mkdir "$dir" && python3 -m venv "$dir" && mkdir "$dir/tmp" &&
                        TMPDIR=$dir/tmp "$dir/bin/python" -m pip install --no-input --no-cache-dir \
                                --disable-pip-version-check -r "$requirements" &&
                        "$dir/bin/python" -c "$(sed -n 's/^torch==.*/import torch/p' "$requirements")" && rm -r "$dir/tmp"
        } </dev/null >"$dir.log" 2>&1 || {
                tail -n 20 "$dir.log" >&2
                say "the environment of ${requirements##*/} could not be made; $dir.log has all that pip said" >&2
                rm -rf -- "$dir"
                return 1
        }
        rm -f "$dir.log"
        : >"$dir/complete"
}

# python_environment [FILE]: prints the path of a python that has what FILE (deploy/python-requirements)
# names, making its environment if it is not there.  Fails, and says why, without network or room.
python_environment() {
        local requirements=${1:-$root/deploy/python-requirements} dir
        dir=$(python_directory "$requirements") || return 1
        # one that is there may be another user's
        if [[ ! -f $dir/complete || -w ${dir%/*} ]]; then
                cache_lock "$dir" 1800 || return 1
                # whoever had the lock may have made it
                [[ -f $dir/complete ]] || python_make "$dir" "$requirements" || return 1
                exec {cache_lock}>&-
        fi
        echo "$dir/bin/python"
}

# ---- build trees -------------------------------------------------------------

# Those of the options NAME=VALUE that the build tree has otherwise.
tree_differences() {
        local tree=$1
        shift
        meson introspect "$tree" --buildoptions | python3 -c '
import json, sys
now = {o["name"]: o["value"] for o in json.load(sys.stdin)}
text = lambda v: " ".join(v) if isinstance(v, list) else str(v).lower() if isinstance(v, bool) else str(v)
print(*(a for a in sys.argv[1:] if text(now.get(a.split("=")[0])) != a.split("=", 1)[1]), sep="\n")
' "$@"
}

# tree_setup DIR NAME=VALUE...: configures the build tree, or sets these options in the one that
# is there.
tree_setup() {
        local tree=$1 log options
        shift
        if [[ ! -f $tree/build.ninja ]]; then
                log=$(meson setup "$tree" "$root" "${@/#/-D}" 2>&1)
        elif $packages_installed; then
                # what meson did not find then may be there now
                log=$(meson configure --clearcache "$tree" 2>&1 &&
                        meson setup --reconfigure "$tree" "$root" "${@/#/-D}" 2>&1)
        else
                mapfile -t options < <(tree_differences "$tree" "$@" | sed '/^$/d')
                ((${#options[@]})) || return 0
                log=$(meson configure "$tree" "${options[@]/#/-D}" 2>&1)
        fi || {
                printf '%s\n' "$log" >&2
                say "meson could not configure $tree" >&2
                return 1
        }
}

# tree_build DIR TARGET...: all targets if none is named.
tree_build() {
        local tree=$1
        shift
        ninja -C "$tree" -j "$jobs" "$@" </dev/null
}

# ---- processes ---------------------------------------------------------------

alive() {
        kill -0 "$1" 2>/dev/null
}

# wait_ends MS PID...: waits until the processes are gone; fails at the deadline.
wait_ends() {
        local end=$(($(now_ms) + $1)) pid
        shift
        for pid; do
                while alive "$pid"; do
                        (($(now_ms) < end)) || return 1
                        sleep 0.05
                done
        done
}

# stop_all MS PID...: SIGTERM, and SIGKILL for those that are there MS later.
stop_all() {
        local ms=$1 pid
        shift
        (($#)) || return 0
        for pid; do
                kill -TERM "$pid" 2>/dev/null
                kill -CONT "$pid" 2>/dev/null
        done
        wait_ends "$ms" "$@" && return 0
        for pid; do
                alive "$pid" && kill -KILL "$pid" 2>/dev/null
        done
        wait_ends 5000 "$@"
}

# ---- nodes on this machine ---------------------------------------------------
#
# For a script that has fail MESSAGE..., which does not return, and finish, called at its end by a
# trap, which stops $daemons and removes $directory.

ready_ms=60000 # until the nodes know each other
# shellcheck disable=SC2034 # finish uses it
stop_ms=15000 # until a daemon that was told to stop is killed
directory=     # of everything that a run leaves while it lasts
nodes=() daemons=()
zerod='' zeroctl=''

# nodes_programs TREE: those of this build tree.
nodes_programs() {
        zerod=$1/daemon/zerod
        zeroctl=$1/client/zeroctl/zeroctl
}

# Those that are installed beside the script, or in PATH.  COMMANDs find their neighbours too.
nodes_installed() {
        PATH=$(cd "$(dirname "$0")" && pwd):$PATH
        zerod=$(command -v zerod) && zeroctl=$(command -v zeroctl) ||
                fail 'zerod and zeroctl are neither beside this script nor in PATH'
}

# Everything lies in one directory, in memory where there is a tmpfs.
make_directory() {
        directory=$(mktemp -d "$(memory_directory)/zerod-$self.$$.XXXXXX") || fail 'cannot make a directory'
}

# Shows the end of what a process wrote.
show_log() {
        echo "--- $(basename "$1" .log)"
        tail -n 20 "$1"
}

# start NAME COMMAND...: in the background, and not longer than this script; sets $started.
start() {
        local name=$1
        shift
        # it is read before the process below may have opened it
        : >"$directory/$name.log"
        setpriv --pdeathsig TERM "$@" </dev/null >"$directory/$name.log" 2>&1 &
        started=$!
}

# free_ports COUNT: ports below the range from which the kernel takes those of connections.
free_ports() {
        python3 - "$1" <<'END'
import random, socket, sys
held = []
while len(held) < int(sys.argv[1]):
    s = socket.socket()
    try:
        s.bind(("127.0.0.1", random.randrange(20000, 32000)))
        held.append(s)
    except OSError:
        s.close()
print(*(s.getsockname()[1] for s in held))
END
}

# configure NODE PEERS
configure() {
        cat >"$directory/$1.conf" <<END
[zerod]
node = $1
peers = $2
key_file = $directory/key
socket = $directory/$1.sock
state_dir = $directory/$1.state
membership_dir = $directory/$1.votes
log_dir = $directory/$1.traces
user = root
http =
END
}

# start_nodes NAME...
start_nodes() {
        local ports i peers=()
        nodes=("$@")
        read -r -a ports < <(free_ports $#)
        ((${#ports[@]} == $#)) || fail 'found no free ports on 127.0.0.1'
        (umask 077 && od -An -vtx1 -N32 /dev/urandom | tr -d ' \n' >"$directory/key") || fail 'cannot write a key'
        for i in "${!nodes[@]}"; do
                peers+=("${nodes[i]}=127.0.0.1:${ports[i]}")
        done
        for i in "${!nodes[@]}"; do
                configure "${nodes[i]}" "${peers[*]}"
                start "zerod-${nodes[i]}" "$zerod" --config "$directory/${nodes[i]}.conf"
                daemons+=("$started")
        done
}

show_node_logs() {
        local node
        for node in "${nodes[@]}"; do
                show_log "$directory/zerod-$node.log"
        done
}

nodes_alive() {
        local pid
        for pid in "${daemons[@]}"; do
                alive "$pid" && continue
                show_node_logs
                fail 'a daemon has ended; see above'
        done
}

# Whether the node is there and reaches its peers.
ready() {
        "$zeroctl" --socket "$directory/$1.sock" --timeout 2 ping >/dev/null 2>&1
}

wait_nodes() {
        local end=$(($(now_ms) + ready_ms)) node
        for node in "${nodes[@]}"; do
                until ready "$node"; do
                        nodes_alive
                        if (($(now_ms) >= end)); then
                                show_node_logs
                                fail "node $node does not reach its peers"
                        fi
                        sleep 0.1
                done
        done
}
