// From the input to the few candidates among which the k-th key is: the sampled floor, passes until the
// candidates fit, and, where these are still many, histogram rounds among them. Every block takes the same decisions from the same counts.

#ifndef CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_
#define CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/block.h"
#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/stream.h"

namespace mstopk {
namespace gpu {

// Copies the keys of the sample to plan.sample.
template <typename Source>
MSTOPK_DEVICE void TakeSample(const Plan& plan, const Source& source) {
  const uint32_t pieces = plan.samples / kSamplePiece;
  const uint32_t threads = plan.warps * kWarpSize;
  for (uint32_t i = GlobalWarp() * kWarpSize + Lane(); i < plan.samples; i += threads) {
    const uint32_t begin = SampleBegin(i / kSamplePiece, pieces, plan.n);
    plan.sample[i] = KeyOf(source.Peek(begin + i % kSamplePiece));
  }
}

MSTOPK_DEVICE void ClearState(const Plan& plan) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(plan.state);
  const uint32_t threads = plan.warps * kWarpSize;
  for (uint32_t i = GlobalWarp() * kWarpSize + Lane(); i < sizeof(State) / sizeof(uint32_t);
       i += threads) {
    words[i] = 0;
  }
}

// The rule of the first pass; when it returns, the state of the whole grid is clear.
template <typename Source>
MSTOPK_DEVICE Rule FirstRule(const Plan& plan, const Source& source, Shared& shared) {
  constexpr uint32_t max_key = KeyTraits<typename Source::Bits>::kMax;
  ClearState(plan);
  if (plan.k > 0) TakeSample(plan, source);
  GridSync();
  if (plan.k == 0) return {max_key + 1, 0, false, false};
  if (plan.samples == 0) return {0, CoveringShift(max_key), true, false};
  // A key of a slightly lower rank is as good.
  const Band low =
      SelectInBlock(plan.sample, plan.samples, {0, max_key, plan.sample_rank, plan.samples},
                    plan.sample_rank / 8, shared);
  // Many elements equal the floor (zeros, clipped gradients): store those above, count the ties.
  const bool plateau = low.width == 0 && low.count > plan.tie_limit;
  const uint32_t floor = plateau ? low.low + 1 : low.low;
  // Bins for half an octave of float32, where the k-th key is, mostly: so fine that one of them is few candidates.
  constexpr uint32_t shift = max_key < (1u << 16) ? 0 : 11;
  return {floor, shift, true, plateau};
}

// Where the k-th key is.
struct Found {
  Band band;
  bool stored;  // whether its elements are candidates; else they all tie, and Shared::ties counts them
};

// Narrows a band in rounds over the candidates, until every block can look at all of it.
template <typename Bits, typename Store>
MSTOPK_DEVICE Band NarrowAmongCandidates(const Plan& plan, const Store& store, Band band,
                                         uint32_t round, Shared& shared) {
  while (band.width != 0 && band.count > plan.max_finalists) {
    const uint32_t shift = CoveringShift(band.width);
    ClearHistogram(shared.histogram);
    store.ForEach([&](bool present, uint32_t bits, uint32_t) {
      const uint32_t offset = KeyOf(static_cast<Bits>(bits)) - band.low;
      if (present && offset <= band.width) AtomicAdd(&shared.histogram[offset >> shift], 1);
    });
    uint32_t* const total = plan.state->rounds[++round].histogram;
    FlushHistogram(shared.histogram, total);
    GridSync();
    FetchHistogram(total, shared.histogram);
    band = BinOf(band, shift, FindCrossing(shared, band.rank));
  }
  return band;
}

// Streams until the candidates fit the store, then narrows down where the k-th key is. `source` is read by the
// first pass, `again` by the others: one pass on all but misleading samples. k > 0.
template <typename Store, typename Source, typename Again>
MSTOPK_DEVICE Found FindBand(const Plan& plan, const Store& store, const Source& source,
                             const Again& again, Rule rule, Shared& shared) {
  using Bits = typename Source::Bits;
  constexpr uint32_t max_key = KeyTraits<Bits>::kMax;
  for (uint32_t round = 0;; ++round) {
    Round& counts = plan.state->rounds[round];
    if (round == 0) {
      StreamPass(plan, store, source, rule, counts, shared);
    } else {
      StreamPass(plan, store, again, rule, counts, shared);
    }
    GridSync();
    const uint32_t ties = LoadFromOthers(&counts.ties);
    const bool overflow = LoadFromOthers(&counts.overflow) != 0;
    FetchHistogram(counts.histogram, shared.histogram);
    const Crossing crossing = FindCrossing(shared, plan.k);
    if (crossing.total < plan.k) {
      if (crossing.total + ties >= plan.k) {
        return {{rule.floor - 1, 0, plan.k - crossing.total, ties}, false};
      }
      rule = {0, CoveringShift(max_key), false, false};  // the floor was too high: look at all keys
      continue;
    }
    const Band band = BinOf({rule.floor, max_key - rule.floor, plan.k, crossing.total}, rule.shift, crossing);
    if (rule.collect && !overflow) {
      return {NarrowAmongCandidates<Bits>(plan, store, band, round, shared), true};
    }
    // Too low; the histogram says how much.
    if (band.width == 0) {  // the bin is one key: its elements all tie
      rule = {band.low + 1, CoveringShift(max_key - band.low), true, true};
    } else {  // that bin over the lower half of the next histogram: what lies beyond stays apart
      const uint32_t wide = 2 * band.width + 1;
      const uint32_t all = max_key - band.low;
      rule = {band.low, CoveringShift(wide < all ? wide : all), true, false};
    }
  }
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_
