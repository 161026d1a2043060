#!/usr/bin/env bash
# Compiles the CUDA kernels of custom_ops for the major architectures from 7.0 on that this nvcc knows, and links an
# op library.
#
# The kernels are plain CUDA without TensorFlow headers, so that nvcc alone checks them, on a
# machine without a GPU. Objects and library: build/cuda/. gpu_check, which compares them with CUB's newest, is built by
# its own run.sh.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

if ! command -v nvcc >/dev/null; then
  echo "make cuda: nvcc is not on PATH: install the CUDA toolkit and add its bin directory." >&2
  exit 1
fi
nvcc --version | grep release
known=$(nvcc --list-gpu-arch)
targets=()
for number in 70 75 80 90 100 120; do
  if grep -qx "compute_$number" <<<"$known"; then
    targets+=("-gencode=arch=compute_$number,code=sm_$number")
    newest=$number
  fi
done
targets+=("-gencode=arch=compute_$newest,code=compute_$newest")  # for what is newer
echo "for: ${targets[*]##*code=}"
count=0
while IFS= read -r source; do
  object=build/cuda/${source%.cu}.o
  mkdir -p "$(dirname "$object")"
  echo "nvcc $source"
  nvcc -std=c++17 -O3 "${targets[@]}" --threads 0 --Werror all-warnings -Xcompiler -Wall,-Wextra,-fPIC \
    -I. -x cu -c "$source" -o "$object"
  count=$((count + 1))
done < <(find custom_ops -name '*.cu' -not -path '*/gpu_check/*' | sort)
echo "$count CUDA sources compiled into build/cuda"
custom_ops/mstopk/gpu/build_ops.sh
