// Where in the grid a thread is, and which part of the input a warp works on.

#ifndef CUSTOM_OPS_MSTOPK_GPU_CHUNK_H_
#define CUSTOM_OPS_MSTOPK_GPU_CHUNK_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"

namespace mstopk {
namespace gpu {

MSTOPK_DEVICE uint32_t GlobalWarp() { return BlockIndex() * kBlockWarps + WarpInBlock(); }

MSTOPK_DEVICE uint32_t GlobalThread() { return GlobalWarp() * kWarpSize + Lane(); }
MSTOPK_DEVICE uint32_t GridThreads(const Plan& plan) { return plan.warps * kWarpSize; }

struct Chunk {
  uint32_t begin;
  uint32_t length;
};

// That of the calling warp; empty for those beyond the input's end.
MSTOPK_DEVICE Chunk ChunkOfWarp(const Plan& plan) {
  const uint64_t before = uint64_t{GlobalWarp()} * plan.chunk;
  const uint32_t begin = before < plan.n ? static_cast<uint32_t>(before) : plan.n;
  return {begin, plan.n - begin < plan.chunk ? plan.n - begin : plan.chunk};
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_CHUNK_H_
