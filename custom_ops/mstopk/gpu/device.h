// The few things of CUDA that the kernels use, so that the same source also runs on the emulator
// (emulator.h), which tests it where there is no GPU.

#ifndef CUSTOM_OPS_MSTOPK_GPU_DEVICE_H_
#define CUSTOM_OPS_MSTOPK_GPU_DEVICE_H_

#include <cstdint>

#ifdef MSTOPK_EMULATE_GPU
#include "custom_ops/mstopk/gpu/emulator.h"
#else
#include <cooperative_groups.h>

#define MSTOPK_DEVICE __device__ __forceinline__
#define MSTOPK_UNROLL _Pragma("unroll")

namespace mstopk {
namespace gpu {

MSTOPK_DEVICE uint32_t ThreadIndex() { return threadIdx.x; }
constexpr uint32_t kThreads = 1024;  // per block, of which one fills a multiprocessor
MSTOPK_DEVICE uint32_t BlockIndex() { return blockIdx.x; }

MSTOPK_DEVICE void BlockSync() { __syncthreads(); }
MSTOPK_DEVICE void GridSync() { cooperative_groups::this_grid().sync(); }
MSTOPK_DEVICE void WarpSync() { __syncwarp(); }

MSTOPK_DEVICE uint32_t Ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }
MSTOPK_DEVICE uint32_t Broadcast(uint32_t value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
MSTOPK_DEVICE uint32_t ShuffleDown(uint32_t value, int distance) {
  return __shfl_down_sync(0xffffffffu, value, distance);
}
MSTOPK_DEVICE int PopCount(uint32_t mask) { return __popc(mask); }
MSTOPK_DEVICE int LeadingZeros(uint32_t word) { return __clz(word); }

MSTOPK_DEVICE uint32_t AtomicAdd(uint32_t* address, uint32_t value) {
  return atomicAdd(address, value);
}

// Of what will not be wanted again soon.
template <typename Bits>
MSTOPK_DEVICE Bits LoadStreaming(const Bits* address) {
  return __ldcs(address);
}
// Of what nobody writes while the kernel runs.
template <typename Bits>
MSTOPK_DEVICE Bits LoadConstant(const Bits* address) {
  return __ldg(address);
}
// Of what other blocks wrote to global memory before the last GridSync.
MSTOPK_DEVICE uint32_t LoadFromOthers(const uint32_t* address) { return __ldcg(address); }

MSTOPK_DEVICE float AddFloats(float a, float b) { return __fadd_rn(a, b); }

extern __shared__ uint32_t dynamic_shared[];
MSTOPK_DEVICE uint32_t* SharedMemory() { return dynamic_shared; }

}  // namespace gpu
}  // namespace mstopk
#endif

namespace mstopk {
namespace gpu {

constexpr uint32_t kWarpSize = 32;

MSTOPK_DEVICE uint32_t Lane() { return ThreadIndex() % kWarpSize; }
MSTOPK_DEVICE uint32_t WarpInBlock() { return ThreadIndex() / kWarpSize; }
constexpr uint32_t kBlockWarps = kThreads / kWarpSize;
MSTOPK_DEVICE uint32_t LanesBelow() { return (1u << Lane()) - 1; }

// Sum over the lanes of a warp, in every lane.
MSTOPK_DEVICE uint32_t WarpSum(uint32_t value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += ShuffleDown(value, distance);
  }
  return Broadcast(value, 0);
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_DEVICE_H_
