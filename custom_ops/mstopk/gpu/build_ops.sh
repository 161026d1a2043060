#!/usr/bin/env bash
# Links build/cuda/mstopk_ops.so: the op library with its CPU and its GPU kernels; called by `make cuda`, which
# has compiled the latter.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.."

nvcc=$(command -v nvcc) || { echo "build_ops.sh: nvcc is not on PATH." >&2; exit 1; }
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
flags() { TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -c "import tensorflow as tf; print(*tf.sysconfig.get_$1_flags())"; }
found=$(flags compile)  # by itself: a failure within a here-string would go unnoticed
read -ra compile <<<"$found"
found=$(flags link)
read -ra link <<<"$found"
out=build/cuda/mstopk
mkdir -p "$out"
core=custom_ops/mstopk
sources=($core/{scan_scalar,scan_avx2,scan_avx512,rank,sample,candidates,mstopk,paper_search}.cc
  $core/error_feedback.cc $core/kernels/*.cc $core/ops/*.cc)
objects=("build/cuda/$core/gpu/gpu_top_k.o")
for source in "${sources[@]}"; do
  object=$out/$(basename "${source%.cc}").o
  g++ "${compile[@]}" -O3 -w -fPIC -I. -I"$cuda/include" -c "$source" -o "$object"
  objects+=("$object")
done
# The CUDA runtime before TensorFlow's library, which has stubs of the same names for a runtime of its own version.
g++ -shared "${objects[@]}" -L"$cuda/lib64" -lcudart_static "${link[@]}" -ldl -lrt -lpthread \
  -o build/cuda/mstopk_ops.so
echo "build/cuda/mstopk_ops.so"
