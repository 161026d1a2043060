// What the threads of one block do together in shared memory: sums, histograms, and the key of a given
// rank among a few thousand.

#ifndef CUSTOM_OPS_MSTOPK_GPU_BLOCK_H_
#define CUSTOM_OPS_MSTOPK_GPU_BLOCK_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"

namespace mstopk {
namespace gpu {

// A block's shared memory; what a store needs follows it.
struct Shared {
  uint32_t histogram[kBins];
  uint32_t warp_sums[kWarpSize];
  uint32_t above[kWarpSize];  // of each warp of the block
  uint32_t ties[kWarpSize];
  uint32_t result[4];
};
constexpr uint32_t kSharedWords = sizeof(Shared) / sizeof(uint32_t);

// Sum over the threads of a block, in every thread.
MSTOPK_DEVICE uint32_t BlockSum(uint32_t value, Shared& shared) {
  value = WarpSum(value);
  BlockSync();
  if (Lane() == 0) shared.warp_sums[WarpInBlock()] = value;
  BlockSync();
  return WarpSum(Lane() < kBlockWarps ? shared.warp_sums[Lane()] : 0);
}

// The smallest shift at which a histogram covers width + 1 keys.
MSTOPK_DEVICE uint32_t CoveringShift(uint32_t width) {
  const uint32_t bits = 32 - LeadingZeros(width);
  return bits > kBinBits ? bits - kBinBits : 0;
}

MSTOPK_DEVICE void ClearHistogram(uint32_t* histogram) {
  BlockSync();
  for (uint32_t bin = ThreadIndex(); bin < kBins; bin += kThreads) histogram[bin] = 0;
  BlockSync();
}

// Adds a block's histogram to that of the grid.
MSTOPK_DEVICE void FlushHistogram(const uint32_t* histogram, uint32_t* total) {
  BlockSync();
  for (uint32_t bin = ThreadIndex(); bin < kBins; bin += kThreads) {
    if (histogram[bin] != 0) AtomicAdd(&total[bin], histogram[bin]);
  }
}

// Copies the grid's histogram to shared memory.
MSTOPK_DEVICE void FetchHistogram(const uint32_t* total, uint32_t* histogram) {
  BlockSync();
  for (uint32_t bin = ThreadIndex(); bin < kBins; bin += kThreads) {
    histogram[bin] = LoadFromOthers(&total[bin]);
  }
}

struct Crossing {
  uint32_t total;  // elements in all bins; where it is less than the rank, the rest is meaningless
  uint32_t bin;    // holds the element of the wanted rank, counted from the top
  uint32_t rank;   // of that element within the bin, from 1
  uint32_t count;  // elements in the bin
};

// Finds where the histogram in shared memory crosses `rank` >= 1.
MSTOPK_DEVICE Crossing FindCrossing(Shared& shared, uint32_t rank) {
  BlockSync();
  constexpr uint32_t bins = kBins / kThreads;  // per thread
  const uint32_t first = ThreadIndex() * bins;
  uint32_t own = 0;
  for (uint32_t i = 0; i < bins; ++i) own += shared.histogram[first + i];
  uint32_t from_here = own;  // sum over this lane and those after it
  for (uint32_t distance = 1; distance < kWarpSize; distance *= 2) {
    const uint32_t other = ShuffleDown(from_here, distance);
    if (Lane() + distance < kWarpSize) from_here += other;
  }
  if (Lane() == 0) shared.warp_sums[WarpInBlock()] = from_here;
  BlockSync();
  const bool after = Lane() > WarpInBlock() && Lane() < kBlockWarps;
  from_here += WarpSum(after ? shared.warp_sums[Lane()] : 0);
  if (ThreadIndex() == 0) shared.result[0] = from_here;
  uint32_t above = from_here - own;
  if (above < rank && rank <= from_here) {
    uint32_t bin = first + bins - 1;
    while (above + shared.histogram[bin] < rank) above += shared.histogram[bin--];
    shared.result[1] = bin;
    shared.result[2] = rank - above;
    shared.result[3] = shared.histogram[bin];
  }
  BlockSync();
  return {shared.result[0], shared.result[1], shared.result[2], shared.result[3]};
}

// Keys low .. low + width, of which there are `count`; the wanted one is the rank-th largest of them.
struct Band {
  uint32_t low, width;
  uint32_t rank, count;
};

// The part of `band` in the crossing bin of a histogram that begins at band.low, in bins of 2^shift keys; the
// last bin takes all that lies beyond.
MSTOPK_DEVICE Band BinOf(const Band& band, uint32_t shift, const Crossing& crossing) {
  const uint32_t offset = crossing.bin << shift;
  const uint32_t left = band.width - offset;
  const uint32_t width = (1u << shift) - 1;
  const bool takes_the_rest = crossing.bin == kBins - 1 || width > left;
  return {band.low + offset, takes_the_rest ? left : width, crossing.rank, crossing.count};
}

// Narrows a band until it is one key, or holds no more than `enough` elements. Of the first `count` of keys, in
// global memory and at most kKeysPerThread per thread, those within the band are its elements.
MSTOPK_DEVICE Band SelectInBlock(const uint32_t* keys, uint32_t count, Band band, uint32_t enough,
                                 Shared& shared) {
  const uint32_t low = band.low;
  uint32_t offsets[kKeysPerThread];  // from `low`
  MSTOPK_UNROLL
  for (uint32_t i = 0; i < kKeysPerThread; ++i) {
    if (i * kThreads >= count) break;
    const uint32_t j = ThreadIndex() + i * kThreads;
    offsets[i] = j < count ? LoadFromOthers(&keys[j]) - low : ~0u;
  }
  while (band.width != 0 && band.count > enough) {
    const uint32_t shift = CoveringShift(band.width);
    ClearHistogram(shared.histogram);
    MSTOPK_UNROLL
    for (uint32_t i = 0; i < kKeysPerThread; ++i) {
      if (i * kThreads >= count) break;
      const uint32_t offset = offsets[i] - (band.low - low);
      if (offset <= band.width) AtomicAdd(&shared.histogram[offset >> shift], 1);
    }
    band = BinOf(band, shift, FindCrossing(shared, band.rank));
  }
  return band;
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_BLOCK_H_
