#!/bin/bash
# Runs suites in PyTorch with the oldest versions of PyTorch, transformers, accelerate and lightning that the
# package supports: deploy/python-requirements-oldest.
#
#   tests/torch/oldest.sh [SUITE...]
#
#   SUITE   files of tests/torch, such as parity; otherwise those below
#
# Makes an environment in the user's cache directory (a download of 3 GB, once) and builds build/.  Left out:
# activations, entries and parallel, whose cases use zerod.torch.checkpoint(), which PyTorch 2.6 does not allow;
# pipeline, for its schedules have no scale_grads; with_accelerate, since the end of a gloo group of PyTorch 2.6
# now and then waits for itself; documents, for its FSDP2 needs a GPU.  Exit status: that of meson test.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

suites=(parity kill aborts optim state checkpoint wrap misuse outside generate layerwise resume launch trainer
        with_lightning zoo spellings)

case ${1:-} in
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
