#!/bin/bash
# Builds zerod and runs its tests.  Without an option: a release build, and of each suite that starts
# daemons every fifth case; a quarter of an hour on two cores.
#
#   tests/run.sh [--all] [--without-torch]
#
#   --all             every case, in a build with address and undefined-behaviour sanitizers; in the
#                     release build every case that they cannot run, and of the others one in three,
#                     others with each commit; three quarters of an hour on two cores
#   --without-torch   downloads nothing from PyPI; suites that need what comes from there are
#                     counted as skipped
#
# Installs the packages that are missing, and PyTorch into the user's cache directory (a download of
# 3 GB, once; without it those suites are skipped).  Trees: build/ and build-san/.  Warnings are
# errors where $CI is set.  A test that fails, a report of a sanitizer, and a process or file that a
# test leaves behind each count as a failure.  Exit status: 0 if nothing failed, 1 if anything
# did, 2 for a wrong command line, 128 + signal when interrupted.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../deploy/lib.sh"

# tests: those that start daemons have sockets, ports and directories of their own, and wait half of their time
at_once=$((jobs < 4 ? 2 * jobs : 8))
build_nice=10 # of what is built beside tests
linger_ms=5000 # until a process that outlives its test counts as left behind
share=5        # without --all, one case of so many runs
again=3        # with --all, one case of so many that sanitizers run too, in the release build
passed=0 failed=0 skipped=0
work= builder= progress=

# ---- what tests leave behind --------------------------------------------------

# left_processes MARK...: every test carries $TESTS_RUN in its environment, and so does what it starts, whoever its
# parent is now; builds carry another mark.  To be called in a process of its own, as in <(left_processes).
left_processes() {
        local marks=("${@/#/-eTESTS_RUN=}") file
        unset TESTS_RUN # for the search itself is not meant
        for file in $(grep -lzxF "${marks[@]}" /proc/[0-9]*/environ 2>/dev/null); do
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
                # shellcheck disable=SC2086 # either may be none
                kill $builder $progress 2>/dev/null
                mapfile -t pids < <(left_processes "$TESTS_RUN" "$(build_mark)")
                stop_all 2000 "${pids[@]}"
                rm -rf -- "$work"
        fi
        exit "$status"
}

# one_failed TREE WHAT
one_failed() {
        failed=$((failed + 1))
        printf '%-8s FAILED %s\n' "$1" "$2" | tee -a "$work/told"
}

# Whatever tests left is named, counted and ended.
check_left() {
        local end=$(($(now_ms) + linger_ms)) pids pid files file
        mapfile -t pids < <(left_processes "$TESTS_RUN")
        while ((${#pids[@]})) && (($(now_ms) < end)); do
                sleep 0.1
                mapfile -t pids < <(left_processes "$TESTS_RUN")
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

build_mark() {
        echo "$TESTS_RUN-build"
}

# build_tree NAME DIR NAME=VALUE...: what is said goes into a file, and another one tells that it was built.
build_tree() {
        local name=$1 tree=$2 mark
        mark=$(build_mark)
        # the temporary files of compilers and their cache are none of the tests'
        local -x TESTS_RUN=$mark XDG_RUNTIME_DIR=$work TMPDIR=$work
        shift 2
        [[ -z ${CI:-} ]] || set -- "$@" werror=true
        { tree_setup "$tree" tests=enabled examples=enabled "$@" && tree_build "$tree"; } >"$work/$name.build" 2>&1 &&
                : >"$work/$name.built"
}

build_tree_beside() {
        renice -n "$build_nice" -p "$BASHPID" >/dev/null
        build_tree "$@"
}

sanitizer_options() {
        local common="halt_on_error=1:abort_on_error=1:print_summary=1:log_exe_name=1"
        # without intercept_tls_get_addr=0 gcc 12's leak sanitizer may crash in a process that has loaded a
        # library with thread-local storage: see tests/sanitizer/threads.c
        export ASAN_OPTIONS="$common:detect_leaks=1:intercept_tls_get_addr=0:log_path=$work/reports/address"
        export LSAN_OPTIONS="suppressions=$root/tests/leaks.supp:print_suppressions=0"
        export UBSAN_OPTIONS="$common:print_stacktrace=1:log_path=$work/reports/undefined"
}

# test_tree NAME DIR
test_tree() {
        local name=$1 tree=$2 counts log=$2/meson-logs/suites.json
        [[ -f $work/$name.built ]] || {
                sed -n '/^FAILED/,$p' "$work/$name.build" | grep . || cat "$work/$name.build"
                one_failed "$name" 'the build'
                return
        }
        rm -rf "$work/reports" "$work/counts" "$log"
        mkdir "$work/reports"
        sanitizer_options
        python3 "$root/tests/progress.py" "$name" "$log" >&2 &
        progress=$!
        meson test -C "$tree" --no-rebuild --logbase suites --num-processes "$at_once" --timeout-multiplier 3 \
                </dev/null >"$work/$name.out" 2>&1
        kill "$progress"
        wait "$progress"
        progress=
        check_left "$name"
        if [[ ! -f $log ]]; then
                cat "$work/$name.out"
                one_failed "$name" 'meson test'
                return
        fi
        python3 "$root/tests/summary.py" "$name" "$work/reports" "$work/counts" "$log" | tee -a "$work/told" ||
                one_failed "$name" 'no summary'
        [[ -f $work/counts ]] && read -r -a counts <"$work/counts" && passed=$((passed + counts[0])) \
                failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
}

# What checks the package's types, and what the suites in PyTorch are told: the python to run by, or why there is none.
find_python() {
        local python
        if ! $torch; then
                export TESTS_PYTHON_MISSING='--without-torch was given'
                return
        fi
        python=$(python_environment "$root/deploy/python-requirements-types") && export TESTS_PYTHON_TYPES=$python
        if python=$(python_environment); then
                export TESTS_PYTHON=$python
        else
                export TESTS_PYTHON_MISSING='there is no PyTorch here, as said above'
        fi
}

# ---- in order -----------------------------------------------------------------

main() {
        local all=false torch=true name sets=(build test)
        while (($#)); do
                case $1 in
                --all) all=true ;;
                --without-torch) torch=false ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                *) wrong "$1: no such option" ;;
                esac
                shift
        done
        trap finish EXIT
        for name in INT TERM HUP; do
                # shellcheck disable=SC2064 # the name of now
                trap "exit $((128 + $(kill -l "$name")))" "$name"
        done
        for name in $(compgen -e ZEROD_) $(compgen -e TESTS_); do
                unset "$name"
        done
        # only root runs its suite, and packages of another origin conflict
        [[ $EUID -ne 0 || -x /usr/sbin/slurmctld || -n $(type -P slurmctld slurmd sbatch munge) ]] || sets+=(slurm)
        packages_install "${sets[@]}" || exit 1
        find_python
        work=$(mktemp -d "$(memory_directory)/zerod-tests.XXXXXX") || exit 1
        mkdir -m 0700 "$work/run"
        mkdir -m 0711 "$work/tmp" # tests have processes of other users
        chmod 0711 "$work"
        # with it Criterion names what it skips
        export CRITERION_VERBOSITY_LEVEL=1
        export TESTS_RUN=$$-$RANDOM TMPDIR=$work/tmp XDG_RUNTIME_DIR=$work/run
        build_tree release "$root/build" buildtype=release
        if $all; then
                # -O2: the compiler takes half as long again as with -O1, kernels and models save more; -g1: lines, for
                # stacks; sets of nodes have two words, which shows code that takes one for a number
                build_tree_beside san "$root/build-san" buildtype=debugoptimized optimization=2 \
                        b_sanitize=address,undefined b_lundef=false crash_points=true c_args='-g1 -DNODE_SET_MAX=128' &
                builder=$!
                TESTS_AGAIN=$(($(git -C "$root" rev-list --count HEAD 2>/dev/null || echo 0) % again + 1))/$again \
                        test_tree release "$root/build"
                wait "$builder"
                builder=
                test_tree san "$root/build-san"
        else
                export TESTS_SHARE=$share
                test_tree release "$root/build"
        fi
        ((skipped == 0)) || echo "$skipped skipped, named above"
        # once more, for whoever has only the end of a log: each failure with the output of its test
        ((failed == 0)) || awk '/^[a-z]/ { bad = $2 == "FAILED" } bad' "$work/told"
        $all || echo "one case of $share ran of each suite that starts daemons; --all runs every one, and sanitizers"
        echo "$passed passed, $failed failed"
        ((failed == 0 && passed > 0))
}

main "$@"
