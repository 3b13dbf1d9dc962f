#!/bin/sh
# nvcc.sh FOLDER NVCC ARGUMENT...
#
# Compiles, and leaves in the folder the PTX of each target and, in "ptxas", the registers of each kernel, which
# tests/unit/cuda/machine_code.py reads.
folder=$1
shift
mkdir -p "$folder" && rm -f "$folder"/*
"$@" -Xptxas -v --keep --keep-dir "$folder" >"$folder/ptxas" 2>&1
status=$?
if [ "$status" -ne 0 ]; then
        cat "$folder/ptxas" >&2
else
        grep -v -e '^ptxas info' -e '^ *[0-9]* bytes stack frame' "$folder/ptxas" >&2
        find "$folder" -type f ! -name '*.ptx' ! -name ptxas -delete
fi
exit "$status"
