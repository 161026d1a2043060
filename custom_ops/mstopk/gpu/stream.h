// One pass over the input: each warp reads its chunk, and stores and counts candidates.
//
// An atomic operation in shared memory per candidate, for the block's histogram, whose bins are added to
// the others' at the end.

#ifndef CUSTOM_OPS_MSTOPK_GPU_STREAM_H_
#define CUSTOM_OPS_MSTOPK_GPU_STREAM_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/chunk.h"
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

// `store` takes the candidates (pages.h, on_chip.h); `histogram` is the block's, in shared memory.
template <typename Store, typename Source>
MSTOPK_DEVICE void StreamPass(const Plan& plan, const Store& store, Source source, const Rule& rule,
                              Round& round, uint32_t* histogram) {
  constexpr int kPerLane = Source::kPerLane;
  constexpr uint32_t kRow = kPerLane * kWarpSize;
  // In flight per lane, to hide the latency of memory; more than 128 bytes would not fit the registers.
  constexpr int kRowsAtOnce = sizeof(typename Source::Fetched) <= 32 ? 4 : 2;
  static_assert(kRow <= kPageSlots && kRowElements % kRow == 0, "a row fits a page and a chunk");
  const Chunk chunk = ChunkOfWarp(plan);
  const uint32_t begin = chunk.begin;
  const uint32_t length = chunk.length;

  ClearHistogram(histogram);
  auto open = store.Open(round, rule.collect);
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
    if (open.takes && Ballot(hits != 0) != 0) open.Append(hits, bits, first);
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
  open.Close();
  if (Lane() == 0) {
    plan.warp_ties[GlobalWarp()] = ties;
    if (ties != 0) AtomicAdd(&round.ties, ties);
    if (non_finite) plan.state->non_finite = 1;
  }
  FlushHistogram(histogram, round.histogram);
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_STREAM_H_
