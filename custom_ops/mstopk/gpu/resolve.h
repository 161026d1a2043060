// From the input to the exact k-th key: the sampled floor, passes until the candidates fit, and
// histogram rounds among the candidates. Every block takes the same decisions from the same counts.

#ifndef CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_
#define CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/stream.h"

namespace mstopk {
namespace gpu {

// A block's shared memory.
struct Shared {
  uint32_t histogram[kBins];
  uint32_t warp_sums[kWarpSize];
  uint32_t result[3];
};
constexpr uint32_t kSharedWords = sizeof(Shared) / sizeof(uint32_t);

struct Crossing {
  uint32_t bin;    // holds the element of the wanted rank, counted from the top
  uint32_t rank;   // of that element within the bin, from 1
  uint32_t count;  // elements in the bin
};

// Finds where the histogram in shared memory crosses `rank`, 1 <= rank <= its sum.
MSTOPK_DEVICE Crossing FindCrossing(Shared& shared, uint32_t rank) {
  BlockSync();
  const uint32_t bins = kBins / BlockThreads();  // per thread
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
  for (uint32_t w = WarpInBlock() + 1; w < BlockWarps(); ++w) from_here += shared.warp_sums[w];
  uint32_t above = from_here - own;
  if (above < rank && rank <= from_here) {
    uint32_t bin = first + bins - 1;
    while (above + shared.histogram[bin] < rank) above += shared.histogram[bin--];
    shared.result[0] = bin;
    shared.result[1] = rank - above;
    shared.result[2] = shared.histogram[bin];
  }
  BlockSync();
  return {shared.result[0], shared.result[1], shared.result[2]};
}

// Copies the grid's histogram to shared memory; returns its sum.
MSTOPK_DEVICE uint32_t FetchHistogram(const uint32_t* total, Shared& shared) {
  BlockSync();
  uint32_t sum = 0;
  for (uint32_t bin = ThreadIndex(); bin < kBins; bin += BlockThreads()) {
    shared.histogram[bin] = LoadShared(&total[bin]);
    sum += shared.histogram[bin];
  }
  sum = WarpSum(sum);
  if (Lane() == 0) shared.warp_sums[WarpInBlock()] = sum;
  BlockSync();
  sum = 0;
  for (uint32_t w = 0; w < BlockWarps(); ++w) sum += shared.warp_sums[w];
  BlockSync();
  return sum;
}

MSTOPK_DEVICE uint32_t Mix(uint32_t x) {  // the finalizer of MurmurHash3
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Copies the keys of the sample to plan.sample: 16 consecutive elements per stratum of the input.
template <typename Source>
MSTOPK_DEVICE void TakeSample(const Plan& plan, const Source& source) {
  constexpr uint32_t kPiece = 16;
  const uint32_t pieces = plan.samples / kPiece;
  const uint32_t threads = plan.warps * kWarpSize;
  for (uint32_t i = GlobalWarp() * kWarpSize + Lane(); i < plan.samples; i += threads) {
    const uint32_t piece = i / kPiece;
    const uint32_t begin = static_cast<uint32_t>(uint64_t{piece} * plan.n / pieces);
    const uint32_t end = static_cast<uint32_t>((uint64_t{piece} + 1) * plan.n / pieces);
    const uint32_t jitter = Mix(plan.n + piece) % (end - begin - kPiece + 1);
    const uint32_t bits = source.Peek(begin + jitter + i % kPiece);
    plan.sample[i] = KeyOf(static_cast<typename Source::Bits>(bits));
  }
}

struct SampledFloor {
  uint32_t key;
  uint32_t ties;  // elements of the sample with this key
};

// The sample's key of rank plan.sample_rank, by rounds of histograms in shared memory.
MSTOPK_DEVICE SampledFloor SelectFromSample(const Plan& plan, uint32_t max_key, Shared& shared) {
  uint32_t low = 0;
  uint32_t shift = CoveringShift(0, max_key);
  uint32_t width = max_key;  // keys low .. low + width are still possible
  uint32_t rank = plan.sample_rank;
  for (;;) {
    BlockSync();
    ClearHistogram(shared.histogram);
    for (uint32_t i = ThreadIndex(); i < plan.samples; i += BlockThreads()) {
      const uint32_t offset = plan.sample[i] - low;
      if (offset <= width) AtomicAdd(&shared.histogram[offset >> shift], 1);
    }
    const Crossing crossing = FindCrossing(shared, rank);
    low += crossing.bin << shift;
    rank = crossing.rank;
    if (shift == 0) return {low, crossing.count};
    width = (1u << shift) - 1;
    shift = CoveringShift(0, width);
  }
}

// The rule of the first pass.
template <typename Source>
MSTOPK_DEVICE Rule FirstRule(const Plan& plan, const Source& source, Shared& shared) {
  constexpr uint32_t max_key = KeyTraits<typename Source::Bits>::kMax;
  if (plan.k == 0) return {max_key + 1, 0, false, false};
  if (plan.samples == 0) return {0, CoveringShift(0, max_key), true, false};
  TakeSample(plan, source);
  GridSync();
  const SampledFloor low = SelectFromSample(plan, max_key, shared);
  // Many elements equal the floor (zeros, clipped gradients): store those above, count the ties.
  const bool plateau = low.ties > plan.tie_limit;
  const uint32_t floor = plateau ? low.key + 1 : low.key;
  return {floor, CoveringShift(floor, max_key), true, plateau};
}

struct Threshold {
  uint32_t key;        // the k-th largest key
  uint32_t quota;      // how many elements with this key win
  bool ties_in_input;  // the ties are only counted: find them by reading chunks again
};

// Narrows the crossing bin down to one key, in rounds over the candidates.
template <typename Bits, typename Store>
MSTOPK_DEVICE Threshold ResolveAmongCandidates(const Plan& plan, const Store& store, Rule rule,
                                               uint32_t round, Shared& shared) {
  Crossing crossing = FindCrossing(shared, plan.k);
  for (;;) {
    rule.floor += crossing.bin << rule.shift;
    if (rule.shift == 0) return {rule.floor, crossing.rank, false};
    const uint32_t width = (1u << rule.shift) - 1;
    rule.shift = CoveringShift(0, width);
    BlockSync();
    ClearHistogram(shared.histogram);
    store.ForEach([&](bool present, uint32_t bits, uint32_t) {
      const uint32_t offset = KeyOf(static_cast<Bits>(bits)) - rule.floor;
      if (present && offset <= width) AtomicAdd(&shared.histogram[offset >> rule.shift], 1);
    });
    uint32_t* const total = plan.state->rounds[++round].histogram;
    FlushHistogram(shared.histogram, total);
    GridSync();
    FetchHistogram(total, shared);
    crossing = FindCrossing(shared, crossing.rank);
  }
}

// Streams until the candidates fit the store, then finds the k-th key. `source` is read by the
// first pass, `again` by the others: one pass on all but misleading samples.
template <typename Store, typename Source, typename Again>
MSTOPK_DEVICE Threshold FindThreshold(const Plan& plan, const Store& store, const Source& source,
                                      const Again& again, Shared& shared) {
  using Bits = typename Source::Bits;
  constexpr uint32_t max_key = KeyTraits<Bits>::kMax;
  Rule rule = FirstRule(plan, source, shared);
  StreamPass(plan, store, source, rule, plan.state->rounds[0], shared.histogram);
  GridSync();
  if (plan.k == 0) return {max_key + 1, 0, false};

  for (uint32_t round = 0;;) {
    Round& counts = plan.state->rounds[round];
    const uint32_t total = FetchHistogram(counts.histogram, shared);
    const uint32_t ties = LoadShared(&counts.ties);
    if (total < plan.k && total + ties >= plan.k) {
      return {rule.floor - 1, plan.k - total, true};
    }
    if (total < plan.k) {  // the floor was too high: look at all keys
      rule = {0, CoveringShift(0, max_key), false, false};
    } else if (rule.collect && LoadShared(&counts.overflow) == 0) {
      return ResolveAmongCandidates<Bits>(plan, store, rule, round, shared);
    } else {  // too low: the histogram says how much
      const uint32_t bin_start = rule.floor + (FindCrossing(shared, plan.k).bin << rule.shift);
      if (rule.shift == 0) {  // the bin is one key: its elements all tie
        rule = {bin_start + 1, CoveringShift(bin_start + 1, max_key), true, true};
      } else {  // that bin over the lower half of the next histogram: what lies beyond stays apart
        rule = {bin_start, CoveringShift(0, (2u << rule.shift) - 1), true, false};
      }
    }
    StreamPass(plan, store, again, rule, plan.state->rounds[++round], shared.histogram);
    GridSync();
  }
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_
