#!/bin/bash
# Builds the Debian packages twice, as two versions, and installs, upgrades, removes and purges them while a job trains.
#
#   tests/packages/run.sh [OLD NEW]
#
#   OLD NEW   directories of packages that are built already, of two versions (deploy/packages.sh)
#
# The root is an overlay over this machine's, in namespaces of its own: nothing outside changes, and all of it is gone
# when the script ends.  The stand-in for deb-systemd-invoke starts the daemon as zerod.service says, for there is no systemd in it.
# The last line is "packages: N checks passed", or names what is missing here.  Exit status: 0, also if it was
# skipped, 1 if a check fails, 2 for a wrong command line.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

inside=$root/tests/packages/inside.sh
self=packages
work=

finish() {
        [[ -z $work ]] || rm -rf -- "$work"
}

# Whether an overlay can be mounted here, and nothing installed would stand in the way; says why not.
possible() {
        if ((EUID)); then
                say 'skipped: needs root, for namespaces and an overlay'
        elif ! unshare --mount --net --pid --fork bash -c "mount -t tmpfs none '$work' && cd '$work' && mkdir up work root &&
                        mount -t overlay -o lowerdir=/,upperdir=up,workdir=work none root" 2>/dev/null; then
                say 'skipped: namespaces or an overlay of / cannot be made here'
        elif dpkg-query -W -f '${Status}' zerod 2>/dev/null | grep -q installed; then
                say 'skipped: zerod is installed here as a package, so that no overlay is a clean root'
        else
                return 0
        fi
        return 1
}

main() {
        case ${1:-} in
        -h | --help)
                usage
                exit 0
                ;;
        -*) wrong "$1: no such option" ;;
        esac
        trap finish EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM HUP
        work=$(mktemp -d) || exit 1
        possible || exit 0
        if (($# != 2)); then
                "$root/deploy/packages.sh" "$root/build-deb/old" &&
                        "$root/deploy/packages.sh" --version 99.0 "$root/build-deb/new" || exit 1
                set -- "$root/build-deb/old" "$root/build-deb/new"
        fi
        # the first process of the namespace takes all others with it
        unshare --mount --net --pid --ipc --fork --kill-child --mount-proc bash "$inside" "$(realpath "$1")" "$(realpath "$2")" "$work"
}

main "$@"
