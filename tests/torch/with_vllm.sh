#!/bin/bash
# Runs zerod.torch.vllm with vLLM's own classes, and the tests of with_vllm.py.  No part of the suites.
#
#   tests/torch/with_vllm.sh [CASE...]
#
# Makes an environment in the user's cache directory (0.7 GB, once), deploy/python-requirements-vllm, beside that of the
# suites in PyTorch, and builds build/.  No engine generates: that needs vLLM's kernels, which are made for one torch.
# Exit status: that of the cases.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

packages_install build test || exit 1
TESTS_PYTHON=$(python_environment) || exit 1
vllm=$(PIP_NO_DEPS=1 python_environment "$root/deploy/python-requirements-vllm") || exit 1
tree_setup "$root/build" buildtype=release tests=enabled examples=enabled && tree_build "$root/build" >/dev/null || exit 1
work=$(mktemp -d) && trap 'rm -rf -- "$work"' EXIT
# the package's metadata have the entry point
cp -r "$root/client/python" "$work/source" &&
        "$TESTS_PYTHON" -m pip install -q --no-deps --no-index --no-build-isolation --disable-pip-version-check \
                --target "$work/zerod" "$work/source" || exit 1
packages=$("$vllm" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || exit 1
export TESTS_PYTHON PYTHONPATH=$work/zerod:$packages VLLM_LOGGING_LEVEL=WARNING
python3 -B "$root/tests/torch/with_vllm.py" "$root"/build/{daemon/zerod,client/zeroctl/zeroctl,tests/support/actor} - "$@"
