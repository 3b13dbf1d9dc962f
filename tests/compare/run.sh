#!/bin/bash
# The same model, data and faults through zerod and through what else PyTorch's users have.
#
#   tests/compare/run.sh [--write] [CASE[:PART,...]]...
#
#   fire      goodput while ranks, daemons and nodes are killed: half an hour; fire:20 for 20 minutes a row in
#             place of 4; PARTs: zerod zerod-warned fsdp2 deepspeed
#   hangs     what one rank does otherwise, and what becomes of training: ten minutes
#   uneven    unequal sequences and numbers of micro-batches: five minutes
#   growth    what 2 to 64 daemons send, compute and keep: two minutes; zerod alone
#   steps     speed, CPU time and waits of steps: about an hour; the program alone has more
#             options: tests/compare/steps.py --help
#   costs     Python's hooks, the update that nothing hides, the update beside eight ranks: three minutes, and
#             12 GB of memory; PARTs: hooks exposed ranks
#   memory    of a rank and of its node, for models of 25 to 350 million parameters: half an hour, as
#             root; PARTs: 25m 100m 350m, and the systems.  memory:largest, which runs only when named,
#             searches for the largest model within 4 and 16 GiB, in one and a half hours, and shows what is
#             known of 8; memory:largest-4 within 4
#   paths     every path beside its limit and beside gloo, 4 KiB to 1 GiB: six minutes, and 20 GB of memory;
#             PARTs: fetch bulk gloo kernels update
#   PART      only these rows of a case
#   --write   keeps the tables of the cases named as tests/compare/RESULTS.md, in place of theirs; what was
#             measured in part replaces no longer table
#
# Without a CASE all of them run, in about an hour: fire, steps and memory in part.  PyTorch is that of
# tests/run.sh; DeepSpeed comes from PyPI, into an environment of its own in the user's cache directory.
# Alone on the machine, or figures mean little.
# Exit status: 0, or 1 if a system of zerod failed or computed something else.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

tree=$root/build

main() {
        local arg python
        for arg; do
                case $arg in
                --write) ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                -*) wrong "$arg: no such option" ;;
                esac
        done
        packages_install build bench test || exit 1
        tree_setup "$tree" buildtype=release examples=enabled tests=enabled || exit 1
        tree_build "$tree" >/dev/null || exit 1
        python=$(python_environment) || exit 1
        exec python3 -B "$root/tests/compare/main.py" "$tree" "$python" "$@" </dev/null
}

main "$@"
