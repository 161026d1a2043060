#!/usr/bin/env bash
# Builds the GPU check into build/cuda/gpu_check and, with a file name as argument, runs it:
#   custom_ops/mstopk/gpu_check/run.sh benchmarks/mstopk/results/h200.json
# cub::DeviceTopK takes part if the headers have it: nvcc's own, or those of the CCCL named by
#   CCCL=DIRECTORY   (for instance of an unpacked wheel of nvidia-cuda-cccl: nvidia/cu13/include/cccl)
# Tried with CUDA 13.0. Where an older nvcc's headers lack cub::DeviceTransform, name newer ones so.
# torch and jax take part where python3 has them.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.."

out=build/cuda/gpu_check.objects
mkdir -p "$out"
core=custom_ops/mstopk
objects=()
for source in $core/{scan_scalar,scan_avx2,scan_avx512,rank,sample,candidates,mstopk,error_feedback}.cc; do
  objects+=("$out/$(basename "${source%.cc}").o")
  g++ -std=c++17 -O3 -w -I. -c "$source" -o "${objects[-1]}"
done
for source in $core/gpu/gpu_top_k.cu $core/gpu_check/*.cu; do
  objects+=("$out/$(basename "${source%.cu}").o")
  nvcc -std=c++17 -O3 -arch=native -I. ${CCCL:+"-I$CCCL"} -c "$source" -o "${objects[-1]}"
done
nvcc "${objects[@]}" -o build/cuda/gpu_check
if (($# > 0)); then
  build/cuda/gpu_check "$1"
  python3 $core/gpu_check/peers.py "$1"
fi
