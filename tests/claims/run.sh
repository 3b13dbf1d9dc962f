#!/bin/bash
# Counts what the papers claim in real runs of the release build: daemons on loopback, and their trainers.
# Prints one table, a row a claim: the value of the paper's formula, the counted one, and whether they agree.
#
#   tests/claims/run.sh [--quick] [--large] [--write]
#
#   --quick   fewer nodes and smaller models: less than a minute; the whole takes two
#   --large   also a job of a billion parameters, which takes 9 GiB of memory
#   --write   keeps the table as tests/claims/RESULTS.md
#
# The rows of the largest model within 8 GiB come from tests/claims/largest.json, which tests/claims/largest.py
# writes.  The rows of L2L need PyTorch, as tests/run.sh makes it, and are left out without.  The last line
# is "claims: N yes, N no".  Exit status: 0, 1 if a row says no, 2 for a wrong command line.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

tree=$root/build

main() {
        local options=(buildtype=release examples=enabled tests=enabled) arg
        for arg; do
                case $arg in
                --quick | --large | --write) ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                *) wrong "$arg: no such option" ;;
                esac
        done
        packages_install build test || exit 1
        [[ -z ${CI:-} ]] || options+=(werror=true)
        tree_setup "$tree" "${options[@]}" || exit 1
        tree_build "$tree" >/dev/null || exit 1
        if TESTS_PYTHON=$(python_environment); then
                export TESTS_PYTHON
        else
                unset TESTS_PYTHON
        fi
        exec python3 -B "$root/tests/claims/main.py" "$tree" "$@" </dev/null
}

main "$@"
