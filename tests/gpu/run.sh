#!/bin/bash
# Checks zerod on this machine's GPU, and measures it.
#
#   tests/gpu/run.sh [--bundle FILE | --build DIR] [--plugin FILE] [--out DIR] [--quick | --small] [--time S] [first | rest | PART[:quick]...]
#
#   first          what answers the most, in 290 s: info processes:quick kernels:quick conformance figures adamw torch:quick
#                  on_gpu:quick tokens:once fetch
#   rest           everything else, in 420 s: daemon:quick trainers paths:quick gpus:quick transformers
#                  profile sanitizer
#   PART           only these, in this order; without any, all of first and rest, whole and in whatever time they take
#   :quick         small and few; of tokens :once is one round of each system
#   --bundle FILE  what bundle.sh has made, elsewhere perhaps; else it is made here, or, where it
#                  cannot be built, taken from zerod-gpu-bundle.tar.xz beside the sources
#   --build DIR    it is made of this build tree
#   --plugin FILE  another plugin than the bundle's, such as tests/support/zerod-fake-gpu.so of a build:
#                  shows that the checks run, without a GPU
#   --out DIR      summary.txt, log.txt (of all parts) and gpu.json (all figures) come there, each line as soon as
#                  it is known; else a new directory
#   --quick        all parts are
#   --small        and figures too, which say nothing then: for a stand-in
#   --time S       in so many seconds: parts for which nothing is left are named at the end
#
# Needs bash, Python 3.10 and coreutils; PyTorch for torch, on_gpu, adamw and tokens, transformers for the part
# of that name, ncu for profile, compute-sanitizer for sanitizer, NCCL, PyTorch's perhaps, or two GPUs for gpus: where
# they are missing that part counts as skipped.  No network, no compiler, no library.  A part that takes
# too long is ended and has failed; the others go on.  What CUDA says of an error is in the log.
# Exit status: 0 if nothing failed, 1 if anything did or was left out for lack of time, 2 for a wrong command
# line, 77 if there is no GPU.
set -uo pipefail
shopt -s extglob
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

FIRST='info processes:quick kernels:quick conformance figures adamw torch:quick on_gpu:quick tokens:once fetch'
REST='daemon:quick trainers paths:quick gpus:quick transformers profile sanitizer'
NO_GPU=77
# Seconds that --time keeps for a part: what those before it leave over is its own too.  Those of FIRST are 290
# together, those of REST 420.
declare -A shares=([info]=10 [processes]=10 [kernels]=10 [conformance]=15 [figures]=20 [adamw]=20 [torch]=50 [on_gpu]=20 [tokens]=120 [fetch]=15
        [daemon]=90 [trainers]=70 [paths]=20 [gpus]=20 [transformers]=40 [profile]=30 [sanitizer]=150)
# Seconds that a part may take at most.
declare -A limits=([info]=60 [processes]=180 [kernels]=240 [figures]=180 [adamw]=180 [torch]=400 [on_gpu]=400 [tokens]=900 [fetch]=300
        [daemon]=400 [paths]=300 [trainers]=300 [gpus]=300 [conformance]=180 [transformers]=300 [profile]=120 [sanitizer]=300)
SHORTEST=10 # seconds: with less left no part is begun
here=$root/tests/gpu
work='' out='' memory='' plugin='' bundle='' build='' least='' size='' quick='' once='' time='' running=''
passed=0 failed=0 skipped=0 left_out=''

finish() {
        [[ -z $work ]] || rm -rf -- "$work"
        [[ -z $memory ]] || rm -rf -- "$memory"
}

end_running() {
        [[ -z $running ]] || kill -KILL -- "-$running" 2>/dev/null
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
        pkg-config --exists libuv ucx libprotobuf-c
}

# Has the bundle's own run.sh do the rest.
run_bundle() {
        local file=$bundle
        if [[ -z $file ]] && { [[ -n $build ]] || can_build; }; then
                file=$work/bundle.tar.xz
                "$here/bundle.sh" ${build:+--build "$build"} "$file" || exit 1
        elif [[ -z $file ]]; then
                file=$root/zerod-gpu-bundle.tar.xz
                [[ -f $file ]] || fail "this machine lacks meson, ninja, cc, pkg-config, nvcc or a library, and there is no $file: make it by tests/gpu/bundle.sh elsewhere"
        fi
        # Python knows xz where tar does not find it
        mkdir "$work/bundle" && python3 -m tarfile -e "$file" "$work/bundle" || fail "cannot unpack $file"
        GPU_BEGIN_MS=$begin "$work/bundle/tests/gpu/run.sh" "$@" # the time to unpack counts
}

# ---- parts -------------------------------------------------------------------------

# The machine's python, with our client library and none of our other libraries.
with_python() {
        LD_LIBRARY_PATH=$root/lib/client${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONPATH=$root/python \
                PYTHONUNBUFFERED=1 python3 -B "$@"
}

# A stand-in is no GPU to PyTorch: it is small, and trainers run on the CPU.
need_torch() {
        [[ $size == --small ]] && python3 -c 'import torch' || need_torch_gpu
}

need_torch_gpu() {
        # asked once: to import PyTorch takes seconds
        [[ -e $work/torch ]] || python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
                echo 'no PyTorch here that sees a GPU'
                return "$NO_GPU"
        }
        : >"$work/torch"
}

# torch_test NAME CASE...: one of tests/torch, on this GPU.
torch_test() {
        local name=$1
        shift
        ZEROD_TEST_CUDA_PLUGIN=$plugin TESTS_PYTHON=$(command -v python3) ZEROD_LIBRARY=$root/lib/client/libzero.so.0 \
                with_python "$root/tests/torch/$name.py" "$root"/bin/{zerod,zeroctl,actor,gpt} "$@"
}

# What else there is to know of a machine that is seen once.
part_info() {
        "$root/bin/info" "$plugin" || return
        nvidia-smi -q 2>&1 | grep -E 'Driver Version|CUDA Version|Product Name|Compute Mode|MIG Mode|Persistence|FB Memory|Total ' |
                head -n 20
        nvidia-smi compute-policy -l 2>&1
        uname -a
        getconf GNU_LIBC_VERSION
        df -h /dev/shm /tmp
        grep -E 'MemTotal|MemAvailable' /proc/meminfo
        echo "$(nproc) processors; LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
        python3 -c 'import sys; print("python", sys.version); import numpy, torch; print("numpy", numpy.__version__, "torch", torch.__version__, torch.version.cuda, "NCCL", torch.cuda.nccl.version())' 2>&1
        return 0
}

# Why there may be none.
no_gpu() {
        ls -l /dev/nvidia* 2>&1
        timeout 20 nvidia-smi 2>&1 | head -n 20
        ldconfig -p 2>/dev/null | grep libcuda
        echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
}

# There is a GPU: checks that leave themselves out, as after a crash while it is opened, have failed.
part_conformance() {
        ZEROD_TEST_ISA=gpu ZEROD_CUDA_PLUGIN=$plugin "$root/bin/conformance" -j4 || return 1
}

part_kernels() {
        "$root/bin/kernels" "$plugin" $size && "$root/bin/formats" "$plugin" $size && "$root/bin/products" "$plugin" $size
}

part_processes() {
        "$root/bin/processes" "$plugin" $size
}

part_sanitizer() {
        local tool sanitizer program status=0
        sanitizer=$(PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer command -v compute-sanitizer) || {
                echo 'no compute-sanitizer here'
                return "$NO_GPU"
        }
        for tool in memcheck racecheck initcheck synccheck; do
                echo "--- $tool"
                # neither needs a library of ours
                for program in 'kernels --quick' 'formats --quick' 'products --small'; do
                        "$sanitizer" --tool "$tool" --error-exitcode 1 "$root/libexec/${program% *}" "$plugin" "${program#* }" || status=1
                done
        done
        return "$status"
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

# Where PyTorch has its NCCL; nothing where it has none, or the system's is to be taken.
nccl_of_torch() {
        python3 -c 'import importlib.util, os
print(os.path.join(importlib.util.find_spec("nvidia.nccl").submodule_search_locations[0], "lib"))' 2>/dev/null
}

# NCCL among all GPUs, or by itself on one; ranks and owners on two, by both ways.
part_gpus() {
        local count status way
        keep 6-between "$root/bin/between" "$plugin" $size
        status=$?
        ((status == 0 || status == NO_GPU)) || return "$status"
        count=$("$root/bin/info" "$plugin" | sed -n 's/.*"gpus": \([0-9]*\).*/\1/p')
        ((${count:-0} > 1)) || return "$status"
        for way in nccl copies; do
                [[ $way == copies || $status == 0 ]] || continue
                echo "between GPUs: $way"
                TESTS_OPTIONS=gpu_collectives=$way ZEROD_TEST_CUDA_PLUGIN=$plugin with_python \
                        "$root/tests/integration/devices.py" "$root"/bin/{zerod,zeroctl,actor,gpt} two_gpus || return 1
        done
}

part_torch() {
        need_torch && keep 3-torch with_python "$here/torch_parity.py" "$root" "$plugin" $quick
}

part_on_gpu() {
        local cases=()
        [[ -z $quick ]] || cases=(learns_what_plain_pytorch_learns_stage3_ranks2 a_gpu_that_is_behind writing_in_place)
        need_torch_gpu && torch_test on_gpu "${cases[@]}"
}

# Leaves itself out where there are no transformers.
part_transformers() {
        need_torch_gpu && torch_test trainer_gpu
}

# keep NAME COMMAND...: what the command writes goes to the log, its lines of JSON also to the figures, at once.
keep() {
        local name=$1 said
        shift
        "$@" | keep_lines "$name"
        said=("${PIPESTATUS[@]}")
        return $((said[0] ? said[0] : said[1]))
}

# Of two figures of one name the later one counts.
keep_lines() {
        local line status=0 file=$work/figures/$1
        : >"$file"
        while IFS= read -r line; do
                printf '%s\n' "$line"
                [[ $line =~ ^\{'"name": '(\"[^\"]*\") ]] || continue
                {
                        grep -vF -- "{\"name\": ${BASH_REMATCH[1]}" "$file"
                        printf '%s\n' "$line"
                } >"$work/kept"
                mv "$work/kept" "$file"
                merge_figures || status=1
        done
        return "$status"
}

# All figures so far, whatever becomes of the part that made them and of those that follow.
merge_figures() {
        python3 -B "$root/tests/bench/merge.py" "$out/gpu.json" "$work"/figures/* >"$work/table"
}

part_figures() {
        keep 1-kernels "$root/bin/figures" "$plugin" $size
}

part_adamw() {
        need_torch && keep 2-adamw with_python "$here/adamw.py" "$plugin" $size
}

part_fetch() {
        keep 5-fetch with_python "$here/fetch.py" "$root" "$plugin" $quick
}

part_tokens() {
        need_torch && keep 4-tokens with_python "$here/tokens.py" "$root" "$plugin" $quick $once
}

# What the update and the reduction wait for, as ncu counts it.
part_profile() {
        local ncu kernel status=0
        [[ -e /dev/nvidiactl || -e /dev/dxg ]] && ncu=$(PATH=$PATH:/usr/local/cuda/bin:$(compgen -G '/opt/nvidia/nsight-compute/*' | tail -n 1) command -v ncu) || {
                echo 'no GPU or no ncu here'
                return "$NO_GPU"
        }
        for kernel in update_kernel reduce_kernel; do
                "$ncu" --set full --clock-control none --kernel-name "$kernel" --launch-skip 2 --launch-count 2 --kill yes \
                        "$root/libexec/figures" "$plugin" || status=1
        done
        return "$status"
}

# run_for SECONDS COMMAND...: its status, or 124; then it has been ended, and what it started.
run_for() {
        local seconds=$1 status
        shift
        set -m # a process group of its own
        "$@" </dev/null &
        running=$!
        set +m
        if timeout --foreground "$seconds" tail -s 0.2 --pid="$running" -f /dev/null; then
                wait "$running"
                status=$?
        else
                kill -INT -- "-$running" # Python cleans up
                timeout --foreground 5 tail -s 0.2 --pid="$running" -f /dev/null
                status=124
        fi
        kill -KILL -- "-$running" 2>/dev/null
        running=
        return "$status"
}

# Seconds that are left of all.
seconds_left() {
        echo $((end == 0 ? 1000000 : (end - $(now_ms)) / 1000))
}

# limit_of NAME LATER...: seconds that the part may take, such that each of the later ones has its share.
limit_of() {
        local name=$1 left later kept=0 most=${limits[$1]}
        [[ $least != --small ]] || most=$((4 * most)) # on a busy machine without a GPU
        left=$(seconds_left)
        shift
        for later; do
                kept=$((kept + shares[${later%%:*}]))
        done
        kept=$((left - kept > shares[$name] ? left - kept : shares[$name]))
        kept=$((kept < left ? kept : left))
        echo $((kept < most ? kept : most))
}

# run_part PART LIMIT: what it says goes to log.txt; the end of that is shown if it fails.
run_part() {
        local name=${1%%:*} limit=$2 log=$out/log.txt status begin word from
        size=$least once=''
        [[ $1 != *:quick || $size ]] || size=--quick
        quick=${size:+--quick} # parts in Python know no other size
        [[ $1 != *:once ]] || once=--once
        begin=$(now_ms)
        echo "=== $1, at most $limit s" >>"$log"
        from=$(($(stat -c %s "$log") + 1))
        PART_END_MS=$((begin + limit * 1000)) run_for "$limit" "part_$name" >>"$log" 2>&1
        status=$?
        rm -rf -- "${memory:?}"/*
        ((status != 124)) || echo "ended: it took more than $limit s" >>"$log"
        tail -c "+$from" "$log" >"$work/said"
        echo "=== $1: status $status" >>"$log"
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
        printf '%-15s %-8s %5d s  %s\n' "$1" "$word" $((($(now_ms) - begin) / 1000)) "$(tail -n 1 "$work/said")"
        ((status == 0 || status == NO_GPU)) || sed 's/^/    /' "$work/said" | tail -n 30
}

# Where the parts' clusters have their files: they go with the part, however it ended.
make_memory() {
        memory=$(mktemp -d "$(memory_directory)/zerod-gpu.XXXXXX") || fail 'cannot make a directory'
        chmod 0755 "$memory"
        export TMPDIR=$memory
}

run_parts() {
        local nccl limit status
        trap 'end_running; finish' EXIT # this is a process of its own
        trap 'exit 130' INT TERM HUP
        mkdir -p "$work/figures"
        make_memory
        # everything runs with -B, so each trainer would compile the package anew
        python3 -m compileall -q -j 0 "$root"/{python,tests,peers} >/dev/null 2>&1
        [[ -n $plugin ]] || plugin=$root/lib/zerod/zerod-cuda.so
        export CUDA_LOG_FILE=${CUDA_LOG_FILE:-stderr} # the driver's own words
        nccl=$(nccl_of_torch)
        [[ -z $nccl ]] || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$nccl
        sed 's/^/    /' "$root/bundle.info"
        timeout -k 5 60 "$root/bin/info" "$plugin" 2>&1 # a driver that hangs costs this minute, and no more
        status=$?
        if ((status == NO_GPU || status == 124 || status == 137)); then
                no_gpu
                exit "$status"
        fi
        # held open, so that the driver does not begin anew with each program
        [[ ! -r /dev/nvidia0 ]] || { exec 9</dev/nvidia0; } 2>/dev/null || :
        while (($#)); do
                limit=$(limit_of "${1%%:*}" "${@:2}")
                if ((limit < SHORTEST)); then
                        left_out+=" $1"
                else
                        run_part "$1" "$limit"
                fi
                shift
        done
        [[ ! -f $work/table ]] || cat "$work/table"
        [[ -z $left_out ]] || echo "no time was left for:$left_out"
        echo "$passed passed, $failed failed, $skipped skipped; all that was said is in $out/log.txt"
        ((failed == 0)) && [[ -z $left_out ]]
}

# ---- in order ----------------------------------------------------------------------

main() {
        local arguments=("$@") parts=() usual=0 begin=${GPU_BEGIN_MS:-$(now_ms)}
        while (($#)); do
                case $1 in
                --bundle | --build | --plugin | --out)
                        (($# > 1)) || { usage >&2 && exit 2; }
                        printf -v "${1#--}" %s "$(realpath -m -- "$2")"
                        shift
                        ;;
                --time)
                        [[ ${2:-} =~ ^[1-9][0-9]{0,5}$ ]] || { usage >&2 && exit 2; }
                        time=$2
                        shift
                        ;;
                --quick | --small) least=$1 ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                first)
                        # shellcheck disable=SC2206 # a list of words
                        parts+=($FIRST)
                        usual=$((usual + 290))
                        ;;
                rest)
                        # shellcheck disable=SC2206
                        parts+=($REST)
                        usual=$((usual + 420))
                        ;;
                *)
                        [[ $1 =~ ^([a-z_]+)(:quick|:once)?$ && ${limits[${BASH_REMATCH[1]}]+known} ]] || wrong "$1: no such option or part"
                        parts+=("$1")
                        ;;
                esac
                shift
        done
        time=${time:-$usual}
        end=$((time > 0 ? begin + time * 1000 : 0))
        trap finish EXIT
        trap 'exit 130' INT TERM HUP
        # shellcheck disable=SC2206 # two lists of words
        ((${#parts[@]})) || parts=(${FIRST//:*([a-z])/} ${REST//:*([a-z])/})
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
        mkdir -p "$out" || fail "cannot make $out"
        run_parts "${parts[@]}" | tee -a "$out/summary.txt"
        exit "${PIPESTATUS[0]}"
}

main "$@"
