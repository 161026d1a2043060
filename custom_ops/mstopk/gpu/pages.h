// Candidates in global memory: each warp appends to a chain of pages of its own.
//
// Positions come from ballots, so there is no atomic operation per element: one in global memory per
// page of 256 candidates.

#ifndef CUSTOM_OPS_MSTOPK_GPU_PAGES_H_
#define CUSTOM_OPS_MSTOPK_GPU_PAGES_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"

namespace mstopk {
namespace gpu {

// The chain of pages of one warp; every lane holds the same values.
struct Chain {
  const Plan& plan;
  Round& round;
  bool takes;          // false once pages ran out, or if nothing is to be stored
  uint32_t count = 0;  // candidates
  uint32_t pages = 0;  // in the chain
  uint32_t page = 0;   // the last of them

  // Makes room for `added` <= kPageSlots candidates. Returns the page before the new one.
  MSTOPK_DEVICE uint32_t Grow(uint32_t added) {
    const uint32_t previous = page;
    if (count + added <= pages * kPageSlots) return previous;
    uint32_t fresh = Lane() == 0 ? AtomicAdd(&round.pages, 1) : 0;
    fresh = Broadcast(fresh, 0);
    if (fresh >= plan.page_count) {
      takes = false;
      if (Lane() == 0) round.overflow = 1;
      return previous;
    }
    if (Lane() == 0) {
      if (pages == 0) {
        plan.warp_first[GlobalWarp()] = fresh;
      } else {
        plan.page_next[previous] = fresh;
      }
    }
    page = fresh;
    ++pages;
    return previous;
  }

  // Stores the elements of this lane that `hits` marks; elements are in lane order, then bit order.
  template <int kPerLane>
  MSTOPK_DEVICE void Append(uint32_t hits, const uint32_t (&bits)[kPerLane], uint32_t first) {
    uint32_t before = 0;
    uint32_t added = 0;
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t mask = Ballot(hits >> i & 1);
      before += PopCount(mask & LanesBelow());
      added += PopCount(mask);
    }
    const uint32_t previous = Grow(added);
    if (!takes) return;
    uint32_t slot = count + before;
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if ((hits >> i & 1) == 0) continue;
      const uint64_t where = slot / kPageSlots + 1 == pages ? page : previous;
      plan.page_bits[where * kPageSlots + slot % kPageSlots] = bits[i];
      plan.page_index[where * kPageSlots + slot % kPageSlots] = first + i;
      ++slot;
    }
    count += added;
  }

  MSTOPK_DEVICE void Close() const {
    if (Lane() == 0) plan.warp_count[GlobalWarp()] = count;
  }
};

struct Pages {
  const Plan& plan;

  // For a pass over this warp's chunk: what it has stored before is forgotten.
  MSTOPK_DEVICE Chain Open(Round& round, bool collect) const { return {plan, round, collect}; }

  // Calls visit(present, bits, index) for the candidates of this warp, one per lane at a time.
  template <typename Visit>
  MSTOPK_DEVICE void ForEach(Visit visit) const {
    const uint32_t count = plan.warp_count[GlobalWarp()];
    uint32_t page = plan.warp_first[GlobalWarp()];
    for (uint32_t done = 0; done < count; done += kWarpSize) {
      if (done != 0 && done % kPageSlots == 0) page = plan.page_next[page];
      const bool present = done + Lane() < count;
      const uint64_t slot = uint64_t{page} * kPageSlots + done % kPageSlots + Lane();
      visit(present, present ? plan.page_bits[slot] : 0, present ? plan.page_index[slot] : 0);
    }
  }
};

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_PAGES_H_
