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

commit=$(<"$root/tests/upgrade/previous")
place=${XDG_CACHE_HOME:-${HOME:-~}/.cache}/zerod/previous-${commit:0:12}

git -C "$root" cat-file -e "$commit^{commit}" || {
        say "commit $commit (tests/upgrade/previous) is not in the history here: clone the repository whole," \
                "or run git fetch --unshallow" >&2
        exit 1
}
mkdir -p "$place"
exec {lock}>"$place/lock"
flock -w 600 "$lock" || {
        say "another build of that release has $place/lock for 10 minutes" >&2
        exit 1
}
if [[ ! -f $place/built ]]; then
        rm -rf "$place/tree"
        mkdir "$place/tree"
        git -C "$root" archive "$commit" | tar x -C "$place/tree"
        {
                unset XDG_RUNTIME_DIR # ccache would leave its directory there
                meson setup "$place/tree/build" "$place/tree" -Doptimization=0 -Dtests=enabled \
                        -D{http,systemd,examples,cuda}=disabled
                ninja -C "$place/tree/build" -j "$jobs" daemon/zerod client/zeroctl/zeroctl tests/support/actor
        } </dev/null >"$place/log" 2>&1 {lock}>&- || {
                tail -30 "$place/log" >&2
                say "the release before cannot be built: see $place/log" >&2
                exit 1
        }
        touch "$place/built"
fi
echo "$place/tree/build"
