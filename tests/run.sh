#!/bin/bash
# Builds zerod and runs every test suite: in a release build, then with address and
# undefined-behaviour sanitizers.
#
#   tests/run.sh [--quick] [--no-torch]
#
#   --quick      the release build only
#   --no-torch   without the suite that needs PyTorch, which is counted as skipped
#
# Installs the packages that are missing, and PyTorch into the user's cache directory (a download of
# 3 GB, once; without it that suite is skipped).  Trees: build/ and build-san/.  Warnings are errors
# where $CI is set.  A test that fails, a report of a sanitizer, and a process or file that a
# test leaves behind each count as a failure.  Exit status: 0 if nothing failed, 1 if anything
# did, 2 for a wrong command line, 128 + signal when interrupted.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib.sh"

daemons=(integration python torch) # the suites that start them
at_once=2 # tests; those that start daemons have sockets, ports and directories of their own, and wait half of their time
linger_ms=5000 # until a process that outlives its test counts as left behind
passed=0 failed=0 skipped=0
work= python_told=

usage() {
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}

# ---- what tests leave behind --------------------------------------------------

# Every process started below carries $TESTS_RUN in its environment, whoever its parent is now.
# To be called in a process of its own, as in <(left_processes).
left_processes() {
        local mark=TESTS_RUN=$TESTS_RUN file
        unset TESTS_RUN # for the search itself is not meant
        for file in $(grep -lzxF "$mark" /proc/[0-9]*/environ 2>/dev/null); do
                file=${file#/proc/}
                echo "${file%/environ}"
        done
}

# Command line, executable and state.
process_name() {
        {
                tr '\0' ' ' <"/proc/$1/cmdline"
                readlink "/proc/$1/exe"
                grep ^State "/proc/$1/status"
        } 2>/dev/null | tr '\n' ' '
}

# Tests make their files in $TMPDIR, on tmpfs where there is one, and daemons in $XDG_RUNTIME_DIR.
left_files() {
        find "$work/tmp" "$work/run" -mindepth 1 -maxdepth 1
}

finish() {
        local status=$? pids
        trap '' INT TERM HUP
        if [[ -n $work ]]; then
                mapfile -t pids < <(left_processes)
                stop_all 2000 "${pids[@]}"
                rm -rf -- "$work"
        fi
        exit "$status"
}

# one_failed TREE WHAT
one_failed() {
        failed=$((failed + 1))
        printf '%-8s FAILED %s\n' "$1" "$2"
}

# Whatever a suite left is named, counted and ended.
check_left() {
        local end=$(($(now_ms) + linger_ms)) pids pid files file
        mapfile -t pids < <(left_processes)
        while ((${#pids[@]})) && (($(now_ms) < end)); do
                sleep 0.1
                mapfile -t pids < <(left_processes)
        done
        for pid in "${pids[@]}"; do
                one_failed "$1" "left running: $pid $(process_name "$pid")"
        done
        stop_all 2000 "${pids[@]}"
        mapfile -t files < <(left_files)
        for file in "${files[@]}"; do
                one_failed "$1" "left behind: $file"
                rm -rf -- "$file"
        done
}

# ---- one build tree -----------------------------------------------------------

# run_suites TREE DIR LOGBASE MESON-OPTION...
run_suites() {
        local name=$1 tree=$2 base=$3
        shift 3
        rm -f "$tree/meson-logs/$base.json"
        meson test -C "$tree" --no-rebuild --logbase "$base" --num-processes "$at_once" --timeout-multiplier 3 "$@" \
                </dev/null >"$work/$base.out" 2>&1
        check_left "$name"
        # without a log either no test matches, or meson itself failed
        [[ -f $tree/meson-logs/$base.json ]] || grep -q '^No .*tests' "$work/$base.out" || {
                cat "$work/$base.out"
                one_failed "$name" "meson test $*"
        }
}

sanitizer_options() {
        local common="halt_on_error=1:abort_on_error=1:print_summary=1:log_exe_name=1"
        export ASAN_OPTIONS="$common:detect_leaks=1:log_path=$work/reports/address"
        export LSAN_OPTIONS="suppressions=$root/tests/leaks.supp:print_suppressions=0"
        export UBSAN_OPTIONS="$common:print_stacktrace=1:log_path=$work/reports/undefined"
}

# test_tree NAME DIR NAME=VALUE...
test_tree() {
        local name=$1 tree=$2 counts
        shift 2
        [[ -z ${CI:-} ]] || set -- "$@" werror=true
        rm -rf "$work/reports" "$work/counts"
        mkdir "$work/reports"
        tree_setup "$tree" tests=enabled examples=enabled "$@" || {
                one_failed "$name" 'meson setup'
                return
        }
        tree_build "$tree" >"$work/build.out" 2>&1 || {
                sed -n '/^FAILED/,$p' "$work/build.out"
                one_failed "$name" 'the build'
                return
        }
        sanitizer_options
        run_suites "$name" "$tree" suites "${daemons[@]/#/--no-suite=}"
        local -x "$python_told"
        run_suites "$name" "$tree" daemons "${daemons[@]/#/--suite=}"
        python3 "$root/tests/summary.py" "$name" "$work/reports" "$work/counts" \
                "$tree"/meson-logs/{suites,daemons}.json || one_failed "$name" 'no summary'
        [[ -f $work/counts ]] && read -r -a counts <"$work/counts" && passed=$((passed + counts[0])) \
                failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
}

# What the suite in PyTorch is told: the python to run by, or why there is none.  Not exported to
# other tests, for daemons take ZEROD_* for their options.
find_python() {
        local python
        if ! $torch; then
                python_told='ZEROD_PYTHON_MISSING=--no-torch was given'
        elif python=$(python_environment); then
                python_told=ZEROD_PYTHON=$python
        else
                python_told='ZEROD_PYTHON_MISSING=there is no PyTorch here, as said above'
        fi
}

# ---- in order -----------------------------------------------------------------

main() {
        local quick=false torch=true name
        while (($#)); do
                case $1 in
                --quick) quick=true ;;
                --no-torch) torch=false ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                *)
                        echo "run.sh: $1: no such option; see --help" >&2
                        exit 2
                        ;;
                esac
                shift
        done
        trap finish EXIT
        for name in INT TERM HUP; do
                # shellcheck disable=SC2064 # the name of now
                trap "exit $((128 + $(kill -l "$name")))" "$name"
        done
        for name in $(compgen -e ZEROD_); do
                unset "$name"
        done
        packages_install build test || exit 1
        find_python
        work=$(mktemp -d "$(memory_directory)/zerod-tests.XXXXXX") || exit 1
        mkdir -m 0700 "$work/tmp" "$work/run"
        # with it Criterion names what it skips
        export CRITERION_VERBOSITY_LEVEL=1
        export TESTS_RUN=$$-$RANDOM TMPDIR=$work/tmp XDG_RUNTIME_DIR=$work/run
        test_tree release "$root/build" buildtype=release
        $quick || test_tree san "$root/build-san" buildtype=debugoptimized \
                b_sanitize=address,undefined b_lundef=false crash_points=true
        ((skipped == 0)) || echo "$skipped skipped, named above"
        echo "$passed passed, $failed failed"
        ((failed == 0 && passed > 0))
}

main "$@"
