#!/bin/bash
# Runs the benchmarks of the release build, prints a table and writes build/bench.json.
#
#   tests/bench/run.sh [--quick] [NAME...]
#   tests/bench/run.sh converge [OPTION...]
#
#   --quick   few rounds: shows that they run, not how fast
#   NAME      only these, of those listed in PROGRAMS below
#   converge  no speed: whether training learns the same, however the states are kept.  One to two hours,
#             alone; --help lists the options, --write keeps tests/bench/CONVERGE.md
#
# Every figure is a ratio to a limit or a peer measured in turn with it in the same run.  Each
# program writes one line of JSON a figure: name, median_ratio, spread (quartiles).  Programs that
# are not built are named as left out.  Exit status: 0, or 1 if a program failed or none ran.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

# Name, and arguments with which it is run; the program is NAME/bench-NAME under tests/bench.
PROGRAMS=(
        'kernels --threads 1'
        "kernels --threads $jobs"
        'bulk'
        'fetch'
        'step'
        'update'
        'delta'
        'matrix --threads 1'
        "matrix --threads $jobs"
        'recovery'
        'checkpoint'
        'plan'
        'scrape'
        'load'
        'follow'
)
QUICK='--repeat 3'

tree=$root/build
work=

finish() {
        [[ -z $work ]] || rm -rf -- "$work"
}

# run_one FILE NAME ARGUMENT...: 0, 1 it failed, 2 it is not built.
run_one() {
        local file=$1 name=$2
        local program=$tree/tests/bench/$name/bench-$name
        shift 2
        [[ -x $program ]] || return 2
        if [[ $name == follow ]]; then # beside a broadcast of PyTorch
                TESTS_PYTHON=${TESTS_PYTHON:-$(python_environment)}
                export TESTS_PYTHON
        fi
        echo "== bench-$name $*"
        "$program" "$@" --json "$file" </dev/null || return 1
        echo
}

# run_converge OPTION...
run_converge() {
        packages_install text || exit 1
        TESTS_PYTHON=$(python_environment) || exit 1
        export TESTS_PYTHON
        exec python3 -B "$root/tests/bench/converge/converge.py" --build "$tree" "$@" </dev/null
}

main() {
        local converge=() quick=() only=() entry words failed=0 n=0 name left=()
        while (($#)); do
                case $1 in
                converge)
                        converge=("$@")
                        break
                        ;;
                --quick) read -r -a quick <<<"$QUICK" ;;
                -h | --help)
                        usage
                        echo "Programs: kernels bulk fetch step update delta matrix recovery checkpoint plan scrape load follow converge"
                        exit 0
                        ;;
                -*) wrong "$1: no such option" ;;
                *) only+=("$1") ;;
                esac
                shift
        done
        trap finish EXIT
        packages_install build bench test || exit 1
        tree_setup "$tree" buildtype=release examples=enabled tests=enabled || exit 1
        tree_build "$tree" >/dev/null || exit 1
        ((${#converge[@]} == 0)) || run_converge "${converge[@]:1}"
        work=$(mktemp -d) || exit 1
        for entry in "${PROGRAMS[@]}"; do
                read -r -a words <<<"$entry"
                name=${words[0]}
                ((${#only[@]} == 0)) || [[ " ${only[*]} " == *" $name "* ]] || continue
                run_one "$work/$(printf '%02d' "$n")-$name" "${words[@]}" "${quick[@]}"
                case $? in
                1) failed=1 ;;
                2) left+=("$name") ;;
                esac
                n=$((n + 1))
        done
        python3 "$root/tests/bench/merge.py" "$tree/bench.json" "$work"/* || failed=1
        ((${#left[@]} == 0)) || echo "left out, not built: ${left[*]}"
        exit "$failed"
}

main "$@"
