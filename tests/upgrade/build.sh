#!/bin/bash
# Builds zerod, zeroctl and the actor of the release before, for tests/integration/upgrade.py.
#
#   tests/upgrade/build.sh
#
# tests/upgrade/previous has the id of that release's commit.  The build lies in the user's cache directory, is
# made once for each commit, and is named by the last line.  Without optimizations: results have the same bits.
set -euo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

case ${1:-} in
-h | --help)
        usage
        exit 0
        ;;
?*) wrong "$1: no such option" ;;
esac
commit=$(<"$root/tests/upgrade/previous")
place=$cache/previous-${commit:0:12}

shallow=$(git -C "$root" rev-parse --is-shallow-repository 2>&1) || {
        say "git does not read $root: $shallow" >&2
        exit 1
}
git -C "$root" cat-file -e "$commit^{commit}" 2>/dev/null || {
        way='clone the repository whole'
        ! $shallow || way="run git -C $root fetch --unshallow"
        say "commit $commit (tests/upgrade/previous) is not in the history here: $way" >&2
        exit 1
}
cache_lock "$place" 600 || exit 1
if [[ ! -f $place/built ]]; then
        rm -rf "$place"
        mkdir -p "$place/tree"
        git -C "$root" archive "$commit" | tar x -C "$place/tree"
        {
                unset XDG_RUNTIME_DIR # ccache would leave its directory there
                meson setup "$place/tree/build" "$place/tree" -Doptimization=0 -Dtests=enabled \
                        -D{http,systemd,examples,cuda}=disabled
                ninja -C "$place/tree/build" -j "$jobs" daemon/zerod client/zeroctl/zeroctl tests/support/actor
        } </dev/null >"$place/log" 2>&1 {cache_lock}>&- || {
                tail -30 "$place/log" >&2
                say "the release before cannot be built: see $place/log" >&2
                exit 1
        }
        touch "$place/built"
fi
echo "$place/tree/build"
