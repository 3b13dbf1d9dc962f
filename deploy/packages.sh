#!/bin/bash
# Makes Debian packages of zerod.
#
#   deploy/packages.sh [--version VERSION] [DIR]
#
#   --version   another version than that of meson.build
#
# Installs the packages that are missing, builds what git has in build-deb/, and leaves the packages in DIR (default:
# build-deb/).  zerod-cuda is built where nvcc is.  The same source gives the same packages: what is dated
# has the time of the last commit, or of $SOURCE_DATE_EPOCH.  Only the symbols of zerod-cuda for debuggers
# differ, and the sum of them in zerod-cuda: nvcc leaves names of its temporary files there.  Exit status: 0,
# 1 if anything fails, 2 for a wrong command line.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

work=$root/build-deb
source=$work/zerod # the same for every version: a cache of the compiler serves them all
out=$work version=
log=$work/log

fail() {
        say "$*" >&2
        exit 1
}

parse() {
        while (($#)); do
                case $1 in
                -h | --help)
                        usage
                        exit 0
                        ;;
                --version)
                        [[ ${2:-} =~ ^[0-9]+(\.[0-9]+)+$ ]] || wrong '--version needs numbers between dots'
                        version=$2
                        shift
                        ;;
                -*) wrong "$1: no such option" ;;
                *)
                        out=$1
                        ;;
                esac
                shift
        done
}

# The paths of the source, each with a zero behind it: what git has or, without git, all but what builds leave.
list_source() {
        if [[ -e $root/.git ]]; then
                git -C "$root" ls-files -z
        else
                (cd "$root" && find . \( -path './build*' -o -path ./client/python/build -o -name __pycache__ -o -name '*.egg-info' \) \
                        -prune -o ! -type d -print0)
        fi
}

# dpkg wants debian/ at the top, and a changelog: the changes are told by NEWS.md.
copy_source() {
        rm -rf -- "$source" && mkdir -p "$source" "$out" &&
                list_source | tar -C "$root" -c --null -T - | tar -x -C "$source" &&
                cp -r "$source/deploy/debian" "$source/debian" || fail 'the source could not be copied'
        [[ -n $version ]] || version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" "$source/meson.build")
        sed -i "s/^\( *version: '\).*\(',\)$/\1$version\2/" "$source/meson.build"
        sed -i "s/^\(version = \"\).*\(\"\)$/\1$version\2/" "$source/client/python/pyproject.toml"
        cat >"$source/debian/changelog" <<END
zerod ($version) unstable; urgency=medium

  * Version $version; /usr/share/doc/zerod/NEWS.md of zerod-doc tells what changed.

 -- $(sed -n 's/^Maintainer: //p' "$source/debian/control")  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
}

main() {
        local profiles='' nvcc lock
        parse "$@"
        packages_install build deb || fail 'packages are missing'
        # the packages are for the system's Python, whichever one is in PATH
        nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || profiles=pkg.zerod.nocuda
        PATH=/usr/sbin:/usr/bin:/sbin:/bin${nvcc:+:${nvcc%/*}}
        export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || stat -c %Y "$root/NEWS.md")}
        mkdir -p "$work" && exec {lock}>"$work/lock" && flock -n "$lock" || fail "another run builds in $work"
        rm -f "$work"/*.{deb,buildinfo,changes}
        copy_source
        # debhelper gives the build a home directory of its own, without the compiler's cache
        (cd "$source" && CCACHE_DIR=${CCACHE_DIR:-${HOME:-~}/.cache/ccache} DEB_BUILD_PROFILES=$profiles \
                DEB_BUILD_OPTIONS=parallel=$jobs dpkg-buildpackage -b -us -uc) </dev/null >"$log" 2>&1 || {
                tail -n 30 "$log" >&2
                fail "the packages could not be built; $log has all of it"
        }
        [[ $out -ef $work ]] || mv "$work"/*.{deb,buildinfo,changes} "$out" || fail "cannot move the packages to $out"
        # the project has no address for mail
        lintian --allow-root --fail-on error,warning --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog \
                "$out/zerod_${version}_$(dpkg --print-architecture).changes" || fail 'lintian complains'
        rm -rf -- "$source"
        say "$version is in $out"
}

main "$@"
