#!/bin/bash
# Builds the image of deploy/container and runs the containers of deploy/kubernetes in it: two nodes, two trainers.
#
#   tests/kubernetes/run.sh [BASE]
#
#   BASE   the image of Debian to build on; default: one that mmdebstrap makes, for which no registry is needed
#
# buildah runs them, as root, without Kubernetes: commands, users, capabilities, variables and volumes are those of the
# manifests; the nodes' directories are temporary.  Image and manifests are what git has at HEAD: files outside of tests/
# must not differ from that.  Ten minutes.
# The last line is "kubernetes: N checks passed", or names what is missing here.  Exit status: 0, also if it was
# skipped, 1 if a check fails, 2 for a wrong command line.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

self=kubernetes
image=localhost/zerod:test
work=

# buildah with its storage in the directory.
store() {
        buildah --root "$work/storage" --runroot "$work/run" "$@" </dev/null
}

finish() {
        [[ $work ]] || return
        store rm --all >/dev/null 2>&1
        rm -rf -- "$work"
}

fail() {
        [[ -f $work/build.log ]] && show_log "$work/build.log"
        say "$*" >&2
        exit 1
}

possible() {
        if ((EUID)); then
                say 'skipped: needs root, for users of its own'
        elif ! command -v buildah >/dev/null || ! command -v runc >/dev/null; then
                say 'skipped: needs buildah and runc (apt-get install buildah runc)'
        elif [[ ! $1 ]] && ! command -v mmdebstrap >/dev/null; then
                say 'skipped: needs an image of Debian, or mmdebstrap (apt-get install mmdebstrap)'
        else
                return 0
        fi
        return 1
}

make_base() {
        local container
        mmdebstrap --variant=minbase --quiet bookworm "$work/base.tar" >"$work/build.log" 2>&1 &&
                container=$(store from scratch) && store add -q "$container" "$work/base.tar" / >/dev/null &&
                store commit -q "$container" "$1" >/dev/null && store rm "$container" >/dev/null || fail 'no base was made'
        rm "$work/base.tar"
}

main() {
        local python changed base=${1:-}
        case $base in
        -h | --help)
                usage
                exit 0
                ;;
        -*) wrong "$base: no such option" ;;
        esac
        trap finish EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        possible "$base" || exit 0
        changed=$(git -C "$root" diff --name-only HEAD -- . ':!tests' 2>&1) || fail "git does not read $root: $changed"
        [[ ! $changed ]] || fail "commit or stash these first, for HEAD is what is built:"$'\n'"$changed"
        work=$(mktemp -d) || exit 1
        mkdir "$work/context" && git -C "$root" archive HEAD | tar -x -C "$work/context" || fail 'the source could not be copied'
        python=$(python_environment "$root/deploy/python-requirements-types") || exit 1
        "$python" -B "$root/tests/kubernetes/documents.py" "$work"/context/deploy/kubernetes/*.yaml >"$work/documents" || fail 'the manifests are not YAML'
        [[ $base ]] || {
                base=localhost/debian:test
                make_base "$base"
        }
        store bud --isolation chroot --format docker --build-arg BASE="$base" -t "$image" \
                -f "$work/context/deploy/container/Containerfile" "$work/context" >"$work/build.log" 2>&1 || fail 'the image was not built'
        python3 -B "$root/tests/kubernetes/image.py" "$work" "$image"
}

main "$@"
