// Candidates on the chip, for short vectors: all elements stay in the shared memory of the block that read
// them. Nothing is sampled or stored elsewhere, and one read of the input is enough, whatever it holds.

#ifndef CUSTOM_OPS_MSTOPK_GPU_ON_CHIP_H_
#define CUSTOM_OPS_MSTOPK_GPU_ON_CHIP_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/block.h"
#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/stream.h"

namespace mstopk {
namespace gpu {

// Where a warp's chunk is kept, element by element.
template <typename Bits>
struct Kept {
  const Rule rule;
  uint32_t* const histogram;
  uint32_t* const elements;
  const uint32_t begin;  // of the chunk

  MSTOPK_DEVICE void Take(const Bits (&bits)[kRowsPerTurn], uint32_t first, uint32_t valid) {
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRowsPerTurn; ++row) {
      const uint32_t i = row * kWarpSize + Lane();
      if (i >= valid) continue;
      elements[first + i - begin] = bits[row];
      if (rule.floor == 0) AtomicAdd(&histogram[KeyOf(bits[row]) >> rule.shift], 1);
    }
  }
  MSTOPK_DEVICE void Close() {}
};

// Takes every element that the input has, and counts them unless the rule is for none: the plan is to be one
// without samples, whose floor is 0.
template <typename Bits>
struct OnChip {
  static constexpr uint32_t kRowsAtOnce = kChunkUnit / kWarpSize;
  const Plan& plan;

  MSTOPK_DEVICE Kept<Bits> Open(Round&, const Rule& rule, Shared& shared) const {
    return {rule, shared.histogram, Elements(), ChunkOfWarp(plan).begin};
  }

  // Calls visit(present, bits, index) for the elements of this warp in order, one per lane at a time.
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
