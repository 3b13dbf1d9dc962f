#!/bin/bash
# Runs suites in PyTorch with the oldest versions of PyTorch, transformers, accelerate and lightning that the
# package supports: deploy/python-requirements-oldest.
#
#   tests/torch/oldest.sh [--quick] [SUITE...]
#
#   --quick  a few suites that touch most of PyTorch and transformers; nothing, with a word, if the environment is not there
#   SUITE    files of tests/torch, such as parity; otherwise those below
#
# Makes an environment in the user's cache directory (a download of 3 GB, once) and builds build/.  Cases with
# zerod.torch.checkpoint() check that it refuses PyTorch 2.6 by name, and are skipped.  Left out are
#   pipeline         1F1B of PyTorch 2.6 over gloo now and then waits for itself, in torch's own calls
#   with_accelerate  so does the end of a gloo group
#   with_trl         TRL is not in the environment
#   compiled         counts graph breaks of the newest dynamo
#   private          names the private functions of the newest versions
#   gpu, on_gpu, trainer_gpu, memory, examples  are of the newest alone
# Exit status: that of meson test.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

suites=(parity parity-2 kill aborts optim ema all_reduce norms process_group state quantised checkpoint wrap misuse threads bases outside generate
        entries layerwise activations parallel resume launch trainer with_lightning documents zoo spellings situations)
quick=(optim wrap generate spellings state process_group)

case ${1:-} in
--quick)
        suites=("${quick[@]}")
        shift
        requirements=$root/deploy/python-requirements-oldest
        if [[ ! -f $(python_directory "$requirements")/complete ]]; then
                say "left out: the environment of ${requirements##*/} is not there, and this makes none" >&2
                exit 77
        fi
        ;;
-h | --help)
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
        exit 0
        ;;
esac
(($# == 0)) || suites=("$@")
packages_install build test || exit 1
python=$(python_environment "$root/deploy/python-requirements-oldest") || exit 1
tree_setup "$root/build" buildtype=release tests=enabled examples=enabled && tree_build "$root/build" >/dev/null || exit 1
TESTS_PYTHON=$python exec meson test -C "$root/build" --no-rebuild --suite torch --num-processes "$jobs" \
        --timeout-multiplier 3 "${suites[@]}" </dev/null
