// One pass over the input: each warp reads its chunk and appends candidates to its chain of pages.
//
// Positions come from ballots, so there is no atomic operation per element: one in global memory
// per page of 256 candidates, and one in shared memory per candidate, for the block's histogram, whose
// bins are added to the others' at the end.

#ifndef CUSTOM_OPS_MSTOPK_GPU_STREAM_H_
#define CUSTOM_OPS_MSTOPK_GPU_STREAM_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/source.h"

namespace mstopk {
namespace gpu {

// What a pass looks for. Elements with key >= floor are counted in bins of 2^shift keys (the last
// bin takes all that lie beyond) and stored if `collect`; those that equal floor - 1 are counted if
// `count_ties`.
struct Rule {
  uint32_t floor;
  uint32_t shift;
  bool collect;
  bool count_ties;
};

// The smallest shift at which the histogram covers all keys from `floor` on.
MSTOPK_DEVICE uint32_t CoveringShift(uint32_t floor, uint32_t max_key) {
  uint32_t shift = 0;
  while (floor <= max_key && ((max_key - floor) >> shift) >= kBins) ++shift;
  return shift;
}

MSTOPK_DEVICE uint32_t GlobalWarp() { return BlockIndex() * BlockWarps() + WarpInBlock(); }

MSTOPK_DEVICE void ClearHistogram(uint32_t* histogram) {
  for (uint32_t bin = ThreadIndex(); bin < kBins; bin += BlockThreads()) histogram[bin] = 0;
  BlockSync();
}

// Adds a block's histogram to that of the grid.
MSTOPK_DEVICE void FlushHistogram(const uint32_t* histogram, uint32_t* total) {
  BlockSync();
  for (uint32_t bin = ThreadIndex(); bin < kBins; bin += BlockThreads()) {
    if (histogram[bin] != 0) AtomicAdd(&total[bin], histogram[bin]);
  }
}

// The chain of pages of one warp; every lane holds the same values.
struct Chain {
  const Plan& plan;
  Round& round;
  bool open;           // false once pages ran out, or if nothing is to be stored
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
      open = false;
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
    if (!open) return;
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
};

// `histogram` is the block's, in shared memory.
template <typename Source>
MSTOPK_DEVICE void StreamPass(const Plan& plan, Source source, const Rule& rule, Round& round,
                              uint32_t* histogram) {
  constexpr int kPerLane = Source::kPerLane;
  constexpr uint32_t kRow = kPerLane * kWarpSize;
  // In flight per lane, to hide the latency of memory; more than 128 bytes would not fit the registers.
  constexpr int kRowsAtOnce = sizeof(typename Source::Fetched) <= 32 ? 4 : 2;
  static_assert(kRow <= kPageSlots && kRowElements % kRow == 0, "a row fits a page and a chunk");
  const uint32_t warp = GlobalWarp();
  const uint64_t chunk_begin = uint64_t{warp} * plan.chunk;
  const uint32_t begin = chunk_begin < plan.n ? static_cast<uint32_t>(chunk_begin) : plan.n;
  const uint32_t length = plan.n - begin < plan.chunk ? plan.n - begin : plan.chunk;

  ClearHistogram(histogram);
  Chain chain = {plan, round, rule.collect};
  uint32_t ties = 0;
  const auto take = [&](const uint32_t(&bits)[kPerLane], uint32_t first, uint32_t valid) {
    uint32_t hits = 0;
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const uint32_t key = KeyOf(static_cast<typename Source::Bits>(bits[i]));
      const bool present = valid >> i & 1;
      ties += present && rule.count_ties && key + 1 == rule.floor;
      if (!present || key < rule.floor) continue;
      hits |= 1u << i;
      const uint32_t bin = (key - rule.floor) >> rule.shift;
      AtomicAdd(&histogram[bin < kBins ? bin : kBins - 1], 1);
    }
    if (chain.open && Ballot(hits != 0) != 0) chain.Append(hits, bits, first);
  };

  uint32_t done = 0;
  for (; done + kRowsAtOnce * kRow <= length; done += kRowsAtOnce * kRow) {
    typename Source::Fetched fetched[kRowsAtOnce];
    const uint32_t first = begin + done + Lane() * kPerLane;
    MSTOPK_UNROLL
    for (int row = 0; row < kRowsAtOnce; ++row) source.Fetch(first + row * kRow, fetched[row]);
    MSTOPK_UNROLL
    for (int row = 0; row < kRowsAtOnce; ++row) {
      uint32_t bits[kPerLane];
      source.Finish(first + row * kRow, fetched[row], bits);
      take(bits, first + row * kRow, ~0u);
    }
  }
  for (; done < length; done += kRow) {
    uint32_t bits[kPerLane] = {};
    uint32_t valid = 0;
    const uint32_t offset = done + Lane() * kPerLane;
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      if (offset + i >= length) continue;
      bits[i] = source.Load(begin + offset + i);
      valid |= 1u << i;
    }
    take(bits, begin + offset, valid);
  }

  ties = WarpSum(ties);
  const bool non_finite = Ballot(source.FoundNonFinite()) != 0;
  if (Lane() == 0) {
    plan.warp_count[warp] = chain.count;
    plan.warp_ties[warp] = ties;
    if (ties != 0) AtomicAdd(&round.ties, ties);
    if (non_finite) plan.state->non_finite = 1;
  }
  FlushHistogram(histogram, round.histogram);
}

// Calls visit(present, bits, index) for the candidates of this warp, one per lane at a time.
template <typename Visit>
MSTOPK_DEVICE void ForEachCandidate(const Plan& plan, Visit visit) {
  const uint32_t count = plan.warp_count[GlobalWarp()];
  uint32_t page = plan.warp_first[GlobalWarp()];
  for (uint32_t done = 0; done < count; done += kWarpSize) {
    if (done != 0 && done % kPageSlots == 0) page = plan.page_next[page];
    const bool present = done + Lane() < count;
    const uint64_t slot = uint64_t{page} * kPageSlots + done % kPageSlots + Lane();
    visit(present, present ? plan.page_bits[slot] : 0, present ? plan.page_index[slot] : 0);
  }
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_STREAM_H_
