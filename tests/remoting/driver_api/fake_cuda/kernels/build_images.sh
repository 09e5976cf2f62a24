#!/bin/sh
# Writes the images beside this file, with nvcc 13.0: a cubin, PTX, and fatbins as nvcc packs them.
set -eu
cd "$(dirname "$0")"
NVCC=${NVCC:-nvcc}
build() {
    output=$1
    shift
    "$NVCC" "$@" -o "$output" test_kernels.cu
}
build test_kernels.sm_90.cubin -cubin -arch=sm_90
build test_kernels.sm_80.cubin -cubin -arch=sm_80 -DWITHOUT_CLUSTERS
build test_kernels.ptx -ptx -arch=compute_90
build test_kernels.fatbin -fatbin --compress-mode=none -DWITHOUT_CLUSTERS \
    -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
    -gencode arch=compute_90,code=compute_90
build test_kernels.zstd.fatbin -fatbin --compress-mode=size -gencode arch=compute_90,code=sm_90
build test_kernels.lz4.fatbin -fatbin --compress-mode=speed \
    -gencode arch=compute_90,code=compute_90
fatbinary --create=reference_kernels.fatbin -64 --compress=false \
    --image3=kind=ptx,sm=52,file=reference_kernels.ptx
"$NVCC" -o memory_kernels.sm_90.cubin memory_kernels.cu -cubin -arch=sm_90
