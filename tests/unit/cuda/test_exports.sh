#!/bin/sh
# The plugin exports its two tables and nothing else, and needs no library of the driver's.
#   test_exports.sh PLUGIN
names=$(nm -D --defined-only "$1" | sed 's/.* //; s/@.*//' | sort | tr '\n' ' ')
needed=$(readelf -d "$1" | grep -c 'NEEDED.*\[lib\(cuda\|nvidia\|nccl\)')
echo "exports: $names, libraries of CUDA: $needed"
[ "$names" = "zero_cuda_plugin zero_gpu_client " ] && [ "$needed" -eq 0 ]
