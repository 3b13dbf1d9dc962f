#!/bin/sh
# The sample file, and every default in it, is a configuration.
#
#   sample.sh CONF_MAN ZEROD
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$1" zerod.conf >"$work/sample"
sed 's/^#\([a-z_]* =\)/\1/' "$work/sample" >"$work/all"
[ "$(grep -c '^[a-z]' "$work/all")" -gt 15 ]
for file in sample all; do
        "$2" --config "$work/$file" --check >"$work/out.$file"
done
grep -q 'drain_ms = 10000  ; default' "$work/out.sample"
grep -q 'drain_ms = 10000  ; file ' "$work/out.all"
