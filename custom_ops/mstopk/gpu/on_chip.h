// Candidates on the chip, for short vectors: all elements stay in the shared memory of the block that read
// them. Nothing is sampled or stored elsewhere, and one read of the input is enough, whatever it holds.

#ifndef CUSTOM_OPS_MSTOPK_GPU_ON_CHIP_H_
#define CUSTOM_OPS_MSTOPK_GPU_ON_CHIP_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/resolve.h"

namespace mstopk {
namespace gpu {

// Where a warp's chunk is kept, element by element.
struct Kept {
  uint32_t* elements;
  uint32_t begin;  // of the chunk
  bool takes;

  template <int kPerLane>
  MSTOPK_DEVICE void Append(uint32_t hits, const uint32_t (&bits)[kPerLane], uint32_t first) {
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (hits >> i & 1) elements[first + i - begin] = bits[i];
    }
  }
  MSTOPK_DEVICE void Close() const {}
};

// Takes every element that the input has: the plan is to be one without samples.
struct OnChip {
  const Plan& plan;

  MSTOPK_DEVICE Kept Open(Round&, bool collect) const {
    return {Elements(), ChunkOfWarp(plan).begin, collect};
  }

  // Calls visit(present, bits, index) for the elements of this warp, one per lane at a time.
  template <typename Visit>
  MSTOPK_DEVICE void ForEach(Visit visit) const {
    const uint32_t* const elements = Elements();
    const Chunk chunk = ChunkOfWarp(plan);
    for (uint32_t done = 0; done < chunk.length; done += kWarpSize) {
      const uint32_t i = done + Lane();
      const bool present = i < chunk.length;
      visit(present, present ? elements[i] : 0, chunk.begin + i);
    }
  }

 private:
  MSTOPK_DEVICE uint32_t* Elements() const {
    return SharedMemory() + kSharedWords + WarpInBlock() * plan.chunk;
  }
};

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_ON_CHIP_H_
