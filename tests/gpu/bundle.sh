#!/bin/bash
# Packs what run.sh needs on a machine with a GPU, which may have no network, no compiler and none of
# our libraries: programs, libraries, the Python package and the checks themselves.
#
#   tests/gpu/bundle.sh [--build DIR] [--no-ucx] [--no-peers] [FILE]
#
#   --build DIR  this build tree, as it is; else build-gpu/ is made (release)
#   --no-ucx     with the UCX that this machine has, not with the one of PyPI that knows CUDA
#   --no-peers   without DeepSpeed of PyPI, which tests/gpu/tokens.py compares with
#   FILE         zerod-gpu-bundle.tar.xz in the current directory
#
# What is not in it: glibc, which has to be at least as new as the one here, Python with PyTorch, NCCL,
# which comes with that and is large, and the GPU's driver.  Exit status: 0, 1 with
# the reason, or 2 for a wrong command line.
set -uo pipefail
# shellcheck source=deploy/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../deploy/lib.sh"

UCX_WHEEL=libucx-cu13==1.22.0
LIMIT_MB=60
PEERS_VERSION=3.12 # of the Python there
# DeepSpeed and what it needs beside torch and numpy.
PEERS_SOURCES='deepspeed==0.19.8 hjson==3.1.0'
PEERS='pydantic==2.12.5 pydantic-core==2.41.5 annotated-types typing-inspection typing-extensions einops msgpack
        packaging psutil py-cpuinfo tqdm'
# Of glibc and the driver: never carried.
LEFT_OUT='^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|resolv|cuda|nvidia-.*))\.so'

tree='' work=''

finish() {
        [[ -z $work ]] || rm -rf -- "$work"
}

fail() {
        say "$*" >&2
        exit 1
}

# Name in the bundle's bin/ and path in the build tree.
programs() {
        cat <<-END
        zerod daemon/zerod
        zeroctl client/zeroctl/zeroctl
        gpt client/examples/gpt/zerod-gpt
        actor tests/support/actor
        conformance tests/conformance/device/conformance-device
        info tests/gpu/gpu-info
        kernels tests/gpu/gpu-kernels
        formats tests/gpu/gpu-formats
        products tests/gpu/gpu-products
        processes tests/gpu/gpu-processes
        between tests/gpu/gpu-between
        figures tests/gpu/gpu-figures
        fetch tests/gpu/gpu-fetch
END
}

# Those that the file needs, directly or not.
libraries() {
        ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | grep -Ev "$LEFT_OUT"
}

# A program runs through a script of its name, so that no other process sees its libraries.  Where the
# machine says by LD_LIBRARY_PATH what its driver is, that stays.
pack_program() {
        local name=$1 file=$tree/$2 library path
        [[ -x $file ]] || fail "$file is not built; does this machine have what deploy/packages names, and nvcc?"
        install -s -m 0755 "$file" "$work/bundle/libexec/$name" || return
        cat >"$work/bundle/bin/$name" <<-'END'
        #!/bin/sh
        top=$(dirname "$(readlink -f "$0")")/..
        LD_LIBRARY_PATH=$top/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$top/libexec/${0##*/}" "$@"
END
        sed -i 's/^ *//' "$work/bundle/bin/$name" && chmod 0755 "$work/bundle/bin/$name" || return
        while read -r library path; do
                [[ -e $work/bundle/lib/$library ]] || install -m 0644 "$path" "$work/bundle/lib/$library" || return
        done < <(libraries "$file")
}

# UCX's modules are looked for beside its libraries.
pack_ucx() {
        local lib=$work/bundle/lib from name
        mkdir -p "$lib/ucx" || return
        if $ucx_of_pypi && python3 -m pip download -q --no-deps --disable-pip-version-check -d "$work/wheel" \
                "$UCX_WHEEL" </dev/null >"$work/pip.log" 2>&1 &&
                python3 -m zipfile -e "$work"/wheel/libucx*.whl "$work/ucx"; then
                from=$work/ucx/libucx/lib
                ucx="$UCX_WHEEL of PyPI, with CUDA"
        else
                from=$(dirname "$(ldd "$tree/daemon/zerod" | awk '$1 == "libucp.so.0" { print $3 }')")
                ucx="this machine's, without CUDA"
                ! $ucx_of_pypi || say "without $UCX_WHEEL, which could not be had: GPU memory will be staged" >&2
        fi
        for name in ucm ucs uct ucp; do
                install -m 0644 "$from/lib$name.so.0" "$lib/" || return
        done
        for name in uct_cma ucm_cuda uct_cuda; do
                [[ ! -e $from/ucx/lib$name.so.0 ]] || install -m 0644 "$from/ucx/lib$name.so.0" "$lib/ucx/" || return
        done
        # without its own CUDA runtime ucm_cuda is not loaded, and UCX does not see GPU memory being freed
        for name in "$work"/ucx/libucx_cu*.libs/libcudart*; do
                [[ ! -e $name ]] || install -m 0644 "$name" "$lib/" || return
        done
}

# libzero by itself, for python, which is the machine's own and shall not see our other libraries.
pack_python() {
        local lib=$work/bundle/lib/client library path
        mkdir -p "$lib" && install -m 0644 "$tree/client/lib/libzero.so.0" "$lib/" || return
        while read -r library path; do
                install -m 0644 "$path" "$lib/$library" || return
        done < <(libraries "$tree/client/lib/libzero.so.0")
        cp -r "$root/client/python" "$work/bundle/python"
}

# Wheels of DeepSpeed and of what it needs, in $work/peers.
peers_wheels() {
        local pip=(python3 -m pip --disable-pip-version-check)
        export DS_BUILD_OPS=0 DS_ACCELERATOR=cuda # what it could compile needs that machine's PyTorch
        mkdir -p "$work/peers" || return
        # shellcheck disable=SC2086 # a list of words
        "${pip[@]}" download -q --no-deps --only-binary=:all: --python-version "$PEERS_VERSION" -d "$work/peers" \
                $PEERS && "${pip[@]}" wheel -q --no-deps -w "$work/peers" $PEERS_SOURCES
}

# A bundle without peers is one too.
pack_peers() {
        local wheel
        peers_are=none
        if ! $with_peers; then
                return
        elif ! (cd / && peers_wheels) </dev/null >"$work/peers.log" 2>&1; then
                tail -n 3 "$work/peers.log" >&2
                say 'without DeepSpeed, which could not be had' >&2
                return
        fi
        for wheel in "$work"/peers/*.whl; do
                python3 -m zipfile -e "$wheel" "$work/bundle/peers" || return
        done
        peers_are=${PEERS_SOURCES%% *}
}

pack_sources() {
        local path
        (cd "$root" && find tests/{gpu,support,bench,integration,torch} deploy/lib.sh client/examples proto -name '*.py' -o \
                -name '*.sh' -o -name '*.proto') | while read -r path; do
                install -D "$root/$path" "$work/bundle/$path" || return
        done
}

pack() {
        local name path
        mkdir -p "$work"/bundle/{bin,libexec,lib/zerod} || return
        while read -r name path; do
                pack_program "$name" "$path" || return
        done < <(programs)
        install -m 0644 "$tree/cuda/zerod-cuda.so" "$work/bundle/lib/zerod/" || fail 'the plugin is not built: nvcc is missing'
        pack_ucx && pack_python && pack_sources && pack_peers || return
        find "$work/bundle/lib" -name '*.so*' -type f -exec strip --strip-unneeded {} + || return
        find "$work/bundle" -name __pycache__ -prune -exec rm -rf {} + || return
        {
                echo "zerod $(meson introspect "$tree" --projectinfo | python3 -c 'import json,sys; print(json.load(sys.stdin)["version"])')"
                echo "commit $(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)"
                echo "glibc $(ldd --version | sed -n '1s/.* //p') or newer"
                echo "ucx $ucx"
                echo "peers $peers_are"
        } >"$work/bundle/bundle.info"
}

main() {
        local out=zerod-gpu-bundle.tar.xz size
        ucx_of_pypi=true ucx='' with_peers=true peers_are=''
        while (($#)); do
                case $1 in
                --build)
                        tree=${2:?"--build needs a directory"}
                        shift
                        ;;
                --no-ucx) ucx_of_pypi=false ;;
                --no-peers) with_peers=false ;;
                -h | --help)
                        usage
                        exit 0
                        ;;
                -*) wrong "$1: no such option" ;;
                *) out=$1 ;;
                esac
                shift
        done
        trap finish EXIT
        trap 'exit 130' INT TERM HUP
        work=$(mktemp -d) || exit 1
        packages_installed=false
        if [[ -z $tree ]]; then
                tree=$root/build-gpu
                tree_setup "$tree" tests=enabled examples=enabled cuda=enabled buildtype=release &&
                        tree_build "$tree" >"$work/build.log" 2>&1 || {
                        tail -n 20 "$work/build.log" >&2
                        fail 'the build failed'
                }
        fi
        pack || fail 'could not pack the bundle'
        XZ_OPT=${XZ_OPT:--T0} tar -cJf "$out.new" -C "$work/bundle" . && mv "$out.new" "$out" || fail "cannot write $out"
        size=$(stat -c %s "$out")
        say "$out: $((size / 1000)) kB packed, $(du -s --apparent-size -B 1000 "$work/bundle" | cut -f 1) kB unpacked"
        sed 's/^/  /' "$work/bundle/bundle.info"
        ((size <= LIMIT_MB << 20)) || fail "$out is larger than $LIMIT_MB MiB"
}

main "$@"
