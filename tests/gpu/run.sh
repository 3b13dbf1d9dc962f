#!/bin/bash
# Checks zerod on this machine's GPU, and measures it.
#
#   tests/gpu/run.sh [--bundle FILE | --build DIR] [--plugin FILE] [--out DIR] [--quick] [PART...]
#
#   --bundle FILE  what bundle.sh has made, elsewhere perhaps; else it is made here, or, where it
#                  cannot be built, taken from zerod-gpu-bundle.tar.xz beside the sources
#   --build DIR    it is made of this build tree
#   --plugin FILE  another plugin than the bundle's, such as tests/support/zerod-fake-gpu.so of a build:
#                  shows that the checks run, without a GPU
#   --out DIR      logs, gpu.json with all figures and summary.txt come there; else a new directory
#   --quick        small and few
#   PART           only these of: info conformance kernels processes sanitizer daemon
#                  paths trainers gpus torch transformers (checks); figures adamw fetch tokens (figures)
#
# Needs bash, Python 3.10 and coreutils; PyTorch for torch, adamw and tokens, transformers for the part
# of that name, compute-sanitizer for sanitizer, two GPUs for gpus: where they are missing that part
# counts as skipped.  No network, no compiler, no library.
# Exit status: 0 if nothing failed, 1 if anything did, 2 for a wrong command line, 77 if there is no GPU.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

CHECKS='info conformance kernels processes sanitizer daemon paths trainers gpus torch transformers'
FIGURES='figures adamw fetch tokens'
NO_GPU=77
here=$root/tests/gpu
work='' out='' plugin='' bundle='' build='' quick=''
passed=0 failed=0 skipped=0

usage() {
        sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
}

finish() {
        [[ -z $work ]] || rm -rf -- "$work"
}

fail() {
        say "$*" >&2
        exit 1
}

# ---- where there is no bundle yet ------------------------------------------------

gpu_seen() {
        [[ -n $plugin || -e /dev/nvidiactl || -e /dev/dxg ]] || nvidia-smi -L >/dev/null 2>&1
}

can_build() {
        local tool
        for tool in meson ninja cc pkg-config nvcc; do
                command -v "$tool" >/dev/null || return 1
        done
}

# Has the bundle's own run.sh do the rest.
run_bundle() {
        local file=$bundle
        if [[ -z $file ]] && { [[ -n $build ]] || can_build; }; then
                file=$work/bundle.tar.xz
                "$here/bundle.sh" ${build:+--build "$build"} "$file" || exit 1
        elif [[ -z $file ]]; then
                file=$root/zerod-gpu-bundle.tar.xz
                [[ -f $file ]] || fail "this machine lacks meson, ninja, cc, pkg-config or nvcc, and there is no $file: make it by tests/gpu/bundle.sh elsewhere"
        fi
        mkdir "$work/bundle" && tar -xJf "$file" -C "$work/bundle" || fail "cannot unpack $file"
        "$work/bundle/tests/gpu/run.sh" "$@"
}

# ---- parts -------------------------------------------------------------------------

# The machine's python, with our client library and none of our other libraries.
with_python() {
        LD_LIBRARY_PATH=$root/lib/client${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONPATH=$root/python \
                PYTHONUNBUFFERED=1 python3 -B "$@"
}

need_torch() {
        python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || {
                echo 'no PyTorch here that sees a GPU'
                return "$NO_GPU"
        }
}

# torch_test NAME: one of tests/torch, on this GPU.
torch_test() {
        ZEROD_TEST_CUDA_PLUGIN=$plugin TESTS_PYTHON=$(command -v python3) ZEROD_LIBRARY=$root/lib/client/libzero.so.0 \
                with_python "$root/tests/torch/$1.py" "$root"/bin/{zerod,zeroctl,actor,gpt}
}

part_info() {
        "$root/bin/info" "$plugin"
}

# There is a GPU: checks that leave themselves out, as after a crash while it is opened, have failed.
part_conformance() {
        ZEROD_TEST_ISA=gpu ZEROD_CUDA_PLUGIN=$plugin "$root/bin/conformance" -j4 || return 1
}

part_kernels() {
        "$root/bin/kernels" "$plugin" $quick
}

part_processes() {
        "$root/bin/processes" "$plugin" $quick
}

part_sanitizer() {
        local tool sanitizer
        sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null) || {
                echo 'no compute-sanitizer here'
                return "$NO_GPU"
        }
        for tool in memcheck racecheck initcheck synccheck; do
                LD_LIBRARY_PATH=$root/lib "$sanitizer" --tool "$tool" --error-exitcode 1 "$root/libexec/kernels" "$plugin" --quick ||
                        return 1
        done
}

part_daemon() {
        with_python "$here/daemon.py" "$root" "$plugin" $quick
}

part_paths() {
        with_python "$here/paths.py" "$root" "$plugin" $quick
}

part_trainers() {
        ZEROD_TEST_CUDA_PLUGIN=$plugin with_python "$root/tests/integration/devices.py" "$root"/bin/{zerod,zeroctl,actor,gpt}
}

# Ranks and owners on two GPUs.
part_gpus() {
        local count
        count=$("$root/bin/info" "$plugin" | sed -n 's/.*"gpus": \([0-9]*\).*/\1/p')
        ((${count:-0} > 1)) || {
                echo 'one GPU here: nothing goes from one to another'
                return "$NO_GPU"
        }
        ZEROD_TEST_CUDA_PLUGIN=$plugin with_python "$root/tests/integration/devices.py" \
                "$root"/bin/{zerod,zeroctl,actor,gpt} two_gpus
}

part_torch() {
        need_torch && with_python "$here/torch_parity.py" "$root" "$plugin" $quick && torch_test on_gpu
}

# Leaves itself out where there are no transformers.
part_transformers() {
        need_torch && torch_test trainer_gpu
}

# keep NAME COMMAND...: what the command writes goes to the log, its lines of JSON also to the figures.
keep() {
        local name=$1
        shift
        "$@" | tee "$work/lines"
        local status=${PIPESTATUS[0]}
        ! grep '^{' "$work/lines" >"$work/figures.$name" || mv "$work/figures.$name" "$figures/$name"
        return "$status"
}

part_figures() {
        keep 1-kernels "$root/bin/figures" "$plugin" $quick
}

part_adamw() {
        need_torch && keep 2-adamw with_python "$here/adamw.py" "$plugin" $quick
}

part_fetch() {
        keep 3-fetch with_python "$here/fetch.py" "$root" "$plugin" $quick
}

part_tokens() {
        need_torch && keep 4-tokens with_python "$here/tokens.py" "$root" "$plugin" $quick
}

# run_part NAME: its log is NAME.log; the end of it is shown if it fails.
run_part() {
        local name=$1 status begin word
        begin=$(now_ms)
        "part_$name" </dev/null >"$out/$name.log" 2>&1
        status=$?
        case $status in
        0)
                passed=$((passed + 1))
                word=ok
                ;;
        "$NO_GPU")
                skipped=$((skipped + 1))
                word='skipped'
                ;;
        *)
                failed=$((failed + 1))
                word='FAILED'
                ;;
        esac
        printf '%-12s %-8s %5d s  %s\n' "$name" "$word" $((($(now_ms) - begin) / 1000)) "$(tail -n 1 "$out/$name.log")"
        ((status == 0 || status == NO_GPU)) || sed 's/^/    /' "$out/$name.log" | tail -n 30
}

run_parts() {
        local name
        figures=$work/figures
        mkdir -p "$out" "$figures" || fail "cannot make $out"
        [[ -n $plugin ]] || plugin=$root/lib/zerod/zerod-cuda.so
        sed 's/^/    /' "$root/bundle.info"
        "$root/bin/info" "$plugin"
        case $? in
        0) ;;
        "$NO_GPU") exit "$NO_GPU" ;;
        *) fail 'the GPU cannot be used, as said above' ;;
        esac
        for name; do
                run_part "$name"
        done
        if compgen -G "$figures/*" >/dev/null; then
                python3 -B "$root/tests/bench/merge.py" "$out/gpu.json" "$figures"/* || failed=$((failed + 1))
        fi
        echo "$passed passed, $failed failed, $skipped skipped; logs in $out"
        ((failed == 0))
}

# ---- in order ----------------------------------------------------------------------

main() {
        local arguments=("$@") parts=()
        while (($#)); do
                case $1 in
                --bundle | --build | --plugin | --out)
                        (($# > 1)) || { usage >&2 && exit 2; }
                        printf -v "${1#--}" %s "$(realpath -m -- "$2")"
                        shift
                        ;;
                --quick) quick=--quick ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                *)
                        [[ " $CHECKS $FIGURES " == *" $1 "* ]] || {
                                say "$1: no such option or part; see --help" >&2
                                exit 2
                        }
                        parts+=("$1")
                        ;;
                esac
                shift
        done
        trap finish EXIT
        trap 'exit 130' INT TERM HUP
        # shellcheck disable=SC2086 # two lists of words
        ((${#parts[@]})) || parts=($CHECKS $FIGURES)
        work=$(mktemp -d) || exit 1
        if ! gpu_seen; then
                say 'there is no GPU here: nothing was checked and nothing measured'
                exit "$NO_GPU"
        fi
        if [[ ! -f $root/bundle.info ]]; then
                run_bundle "${arguments[@]}"
                exit
        fi
        [[ -n $out ]] || out=$(mktemp -d -t zerod-gpu.XXXXXX)
        run_parts "${parts[@]}" | tee "$work/summary.txt"
        status=${PIPESTATUS[0]}
        cp "$work/summary.txt" "$out/"
        exit "$status"
}

main "$@"
