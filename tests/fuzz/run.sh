#!/bin/sh
# Runs one fuzzer with libFuzzer, address and undefined-behaviour sanitizers.
#
#   tests/fuzz/run.sh NAME SECONDS
#
# Starts from corpus/NAME.  What it finds that is new goes to build-fuzz/corpus/NAME, inputs that fail
# to build-fuzz/NAME-*; exits with 0 if nothing failed.  Needs clang.
set -eu

if [ $# -ne 2 ]; then
        echo "usage: $0 NAME SECONDS" >&2
        exit 2
fi
name=$1
seconds=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tree=${FUZZ_BUILD:-$root/build-fuzz}

if [ ! -f "$here/fuzz_$name.c" ]; then
        echo "$0: there is no fuzzer named $name" >&2
        exit 2
fi
if [ ! -f "$tree/build.ninja" ]; then
        CC=clang meson setup "$tree" "$root" -Dbuildtype=debugoptimized -Db_lundef=false \
                -Db_sanitize=address,undefined -Dc_args=-fsanitize=fuzzer-no-link
fi
ninja -C "$tree" "tests/fuzz/libfuzzer-$name"
mkdir -p "$tree/corpus/$name"
exec "$tree/tests/fuzz/libfuzzer-$name" -max_total_time="$seconds" -print_final_stats=1 \
        -artifact_prefix="$tree/$name-" "$tree/corpus/$name" "$here/corpus/$name"
