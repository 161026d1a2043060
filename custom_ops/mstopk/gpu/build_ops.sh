#!/usr/bin/env bash
# Builds build/cuda/mstopk_ops.so: the op library with its CPU and its GPU kernels.
#
# Needs nvcc and the virtual environment, no GPU. On a GPU machine copy the result over
# custom_ops/mstopk/mstopk_ops.so. CUDA 13's nvcc starts at sm_75; set TSS_CUDA_ARCHS for others.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.."

nvcc=$(command -v nvcc) || { echo "build_ops.sh: nvcc is not on PATH." >&2; exit 1; }
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
flags() { .venv/bin/python -c "import tensorflow as tf; print(*tf.sysconfig.get_$1_flags())" 2>/dev/null; }
read -ra compile <<<"$(flags compile)"
read -ra link <<<"$(flags link)"
archs=()
for arch in ${TSS_CUDA_ARCHS:-75 80 90}; do
  archs+=(-gencode "arch=compute_$arch,code=sm_$arch")
done
archs+=(-gencode "arch=compute_$arch,code=compute_$arch")  # for GPUs that are newer than the last one

out=build/cuda/mstopk
mkdir -p "$out"
core=custom_ops/mstopk
nvcc -std=c++17 -O3 "${archs[@]}" -Xcompiler -fPIC -I. -c $core/gpu/gpu_top_k.cu -o "$out/gpu_top_k.o"
sources=($core/{scan_scalar,scan_avx2,scan_avx512,rank,sample,candidates,mstopk,paper_search}.cc
  $core/error_feedback.cc $core/kernels/*.cc $core/ops/*.cc)
objects=("$out/gpu_top_k.o")
for source in "${sources[@]}"; do
  object=$out/$(basename "${source%.cc}").o
  g++ "${compile[@]}" -O3 -w -fPIC -I. -I"$cuda/include" -c "$source" -o "$object"
  objects+=("$object")
done
g++ -shared "${objects[@]}" "${link[@]}" -L"$cuda/lib64" -lcudart_static -ldl -lrt -lpthread \
  -o build/cuda/mstopk_ops.so
echo "build/cuda/mstopk_ops.so"
