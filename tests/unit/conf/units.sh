#!/bin/sh
# The units are what systemd understands, without a warning, and leave little exposed; the user
# and the directory of the states come out as the daemon needs them.
#
#   units.sh SYSTEMD_DIRECTORY ZEROD
#
# Skipped (77) without systemd-analyze.  The files of user and directory need root.
set -eu

units=$1
zerod=$(realpath "$2")
exposure_limit=20 # tenths

command -v systemd-analyze >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/etc" "$root/dev/shm"

fail() {
        cat "$work/out"
        echo "$1" >&2
        exit 1
}

sed "s|@bindir@/zerod|$zerod|" "$units/zerod.service.in" >"$work/zerod.service"
cp "$units/zerod.socket" "$units/dev-shm-zerod.mount" "$work"

# Unknown keys only warn.  Other units of the machine are not ours to judge.
systemd-analyze verify --man=no "$work/zerod.service" "$work/zerod.socket" \
        "$work/dev-shm-zerod.mount" >"$work/out" 2>&1 ||
        fail "verify failed"
! grep -q zerod "$work/out" || fail "verify warned"

systemd-analyze security --offline=true --no-pager --threshold=$exposure_limit \
        "$work/zerod.service" >"$work/out" 2>&1 || fail "exposure is above $exposure_limit tenths"
tail -n 1 "$work/out"

# The drop-in for scrapers: understood too, and still little exposed.
mkdir "$work/zerod.service.d"
cp "$units/../deploy/prometheus/scrape.conf" "$work/zerod.service.d"
systemd-analyze verify --man=no "$work/zerod.service" >"$work/out" 2>&1 || fail "verify failed with scrape.conf"
! grep -E 'zerod|scrape' "$work/out" || fail "verify warned of scrape.conf"
systemd-analyze security --offline=true --no-pager --threshold=$exposure_limit \
        "$work/zerod.service" >"$work/out" 2>&1 || fail "exposure with scrape.conf is above $exposure_limit tenths"

[ "$(id -u)" -eq 0 ] || exit 0
systemd-sysusers --root="$root" "$units/zerod.sysusers" >"$work/out" 2>&1 || fail "sysusers failed"
user=$(grep ^zerod: "$root/etc/passwd" | cut -d: -f3)
systemd-tmpfiles --root="$root" --create "$units/zerod.tmpfiles" >"$work/out" 2>&1 ||
        fail "tmpfiles failed"
[ "$(stat -c %u:%a "$root/dev/shm/zerod")" = "$user:700" ] || fail "the directory is not private"
