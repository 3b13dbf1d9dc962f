#!/bin/bash
# Runs run.sh with the stand-in for a GPU in a bare root: sh, bash, coreutils, grep, sed and Python of this machine's Debian
# packages, no xz, no library of ours, no network, no PyTorch.
#
#   tests/gpu/bare.sh [--build DIR] [PART...]
#
#   --build DIR  the build tree of the programs; else build/
#   PART         as of run.sh; without any, all
#
# Every part that needs neither PyTorch nor NVIDIA's tools must pass there, and the others must be skipped: a part that cannot
# even start is seen before there is a GPU.  As root; needs no network.  Exit status: 0, 1 with the reason, 2 for a wrong
# command line, 77 where this machine cannot make such a root.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

# Left out where there is no PyTorch, no tool of NVIDIA's, no second GPU, or no way but staging.
SKIPPED='adamw torch on_gpu tokens transformers profile sanitizer'
work=

finish() {
        [[ -z $work ]] || rm -rf -- "$work"
}

fail() {
        say "$*" >&2
        exit 1
}

possible() {
        if ((EUID)); then
                say 'skipped: needs root, for a root of its own'
        elif ! command -v dpkg-query >/dev/null || ! command -v unshare >/dev/null || ! command -v ip >/dev/null; then
                say "skipped: needs Debian's packages, unshare and ip"
        elif ! unshare --mount --pid --net --fork true 2>/dev/null; then
                say 'skipped: no namespaces here'
        else
                return 0
        fi
        return 1
}

# packages NAME...: these and what they depend on.
packages() {
        local -A known=()
        local name
        while (($#)); do
                name=$1
                shift
                [[ ! ${known[$name]+known} ]] && dpkg-query -L "$name" >/dev/null 2>&1 || continue
                known[$name]=
                # shellcheck disable=SC2016,SC2046 # dpkg-query's names; a list of words
                set -- "$@" $(dpkg-query -W -f '${Pre-Depends},${Depends}' "$name" | tr ',' '\n' |
                        sed 's/|.*//; s/(.*//; s/:any//; s/[[:space:]]//g')
        done
        printf '%s\n' "${!known[@]}"
}

make_root() {
        local top=$1 name
        mkdir -p "$top"/{usr/{bin,lib,lib64,sbin},etc,proc,dev/shm,tmp,var,root,zerod} || return
        for name in bin lib lib64 sbin; do
                ln -s "usr/$name" "$top/$name" || return
        done
        # shellcheck disable=SC2046 # a list of words
        dpkg-query -L $(packages bash dash coreutils grep sed libc-bin python3) | sort -u | grep -Ev '^/usr/share/(doc|man|locale|lintian)' |
                while IFS= read -r name; do
                        [[ ! -f $name && ! -L $name ]] || echo "${name#/}"
                done | tar -c -C / -T - 2>/dev/null | tar -x -C "$top" --keep-directory-symlink || return
        printf 'root:x:0:0::/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n' >"$top/etc/passwd"
        printf 'root:x:0:\nnogroup:x:65534:\n' >"$top/etc/group"
        for name in null zero full random urandom; do
                cp -a "/dev/$name" "$top/dev/" || return
        done
        chmod 1777 "$top"/{tmp,dev/shm}
}

# in_root DIR COMMAND...: with memory of its own, alone among processes and with loopback for a network.
in_root() {
        local top=$1
        shift
        # shellcheck disable=SC2016 # the inner shell's
        unshare --mount --pid --net --fork --kill-child bash -c '
                top=$1; shift
                ip link set lo up && mount -t proc proc "$top/proc" && mount -t tmpfs tmpfs "$top/dev/shm" || exit 1
                exec chroot "$top" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"
        ' bash "$top" "$@"
}

# What became of each part is what is expected of it.
judge() {
        local name state rest wrong=0 seen=0
        while read -r name state rest; do
                [[ $state == ok || $state == skipped || $state == FAILED ]] || continue
                name=${name%%:*}
                seen=$((seen + 1))
                [[ $state == "$(expected "$name")" || $name$state =~ ^(paths|gpus)skipped$ ]] || {
                        say "part $name was to be $(expected "$name"), and is $state: $rest" >&2
                        wrong=1
                }
        done <"$1"
        ((seen)) || fail 'no part has run'
        ((wrong == 0)) || fail 'see above'
        say "$seen parts: all that need no PyTorch and no tool of NVIDIA's have passed"
}

expected() {
        [[ " $SKIPPED " == *" $1 "* ]] && echo skipped || echo ok
}

main() {
        local tree=$root/build parts=() top status
        while (($#)); do
                case $1 in
                --build)
                        tree=$(realpath -m -- "${2:?"--build needs a directory"}")
                        shift
                        ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                -*) wrong "$1: no such option" ;;
                *) parts+=("$1") ;;
                esac
                shift
        done
        trap finish EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        possible || exit 77
        work=$(mktemp -d) || exit 1
        top=$work/root
        XZ_OPT=-0 "$root/tests/gpu/bundle.sh" --build "$tree" --no-ucx --no-peers "$work/bundle.tar.xz" >"$work/log" 2>&1 &&
                make_root "$top" >>"$work/log" 2>&1 || {
                show_log "$work/log"
                fail 'the root could not be made'
        }
        mkdir -p "$top/zerod/"{tests,deploy} && cp -r "$root/tests/gpu" "$top/zerod/tests/" && cp "$root/deploy/lib.sh" "$top/zerod/deploy/" &&
                mv "$work/bundle.tar.xz" "$top/zerod/zerod-gpu-bundle.tar.xz" && cp "$tree/tests/support/zerod-fake-gpu.so" "$top/zerod/" || exit 1
        ! in_root "$top" bash -c 'command -v xz pip gcc meson' || fail 'the root is not bare'
        in_root "$top" /zerod/tests/gpu/run.sh --bundle /zerod/zerod-gpu-bundle.tar.xz --plugin /zerod/zerod-fake-gpu.so --small \
                --out /out "${parts[@]}"
        status=$?
        judge "$top/out/summary.txt"
        ((status == 0)) || fail "run.sh ended with $status"
}

main "$@"
