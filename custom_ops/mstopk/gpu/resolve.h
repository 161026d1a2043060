// From the input to the few candidates among which the k-th key is: the sampled floor, a pass, one more if that
// was too high, and, where these are still many, histogram rounds among them. Every block takes the same
// decisions from the same counts.

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
  for (uint32_t i = GlobalThread(); i < plan.samples; i += GridThreads(plan)) {
    const uint32_t begin = SampleBegin(i / kSamplePiece, pieces, plan.n);
    plan.sample[i] = KeyOf(source.Peek(begin + i % kSamplePiece));
  }
}

MSTOPK_DEVICE void ClearState(const Plan& plan) {
  uint32_t* const words = reinterpret_cast<uint32_t*>(plan.state);
  constexpr uint32_t length = sizeof(State) / sizeof(uint32_t);
  for (uint32_t i = GlobalThread(); i < length; i += GridThreads(plan)) words[i] = 0;
}

// The rule of the first pass; when it returns, the state of the whole grid is clear.
template <typename Source>
MSTOPK_DEVICE Rule FirstRule(const Plan& plan, const Source& source, Shared& shared) {
  constexpr uint32_t max_key = KeyTraits<typename Source::Bits>::kMax;
  ClearState(plan);
  if (plan.k > 0) TakeSample(plan, source);
  GridSync();
  if (plan.k == 0) return {max_key + 1, 0, false};
  if (plan.samples == 0) return {0, CoveringShift(max_key), false};
  // A key of a slightly lower rank is as good.
  const Band low =
      SelectInBlock(plan.sample, plan.samples, {0, max_key, plan.sample_rank, plan.samples},
                    plan.sample_rank / 8, shared);
  // Many elements equal the floor (zeros, clipped gradients): store those above, count the ties.
  const bool plateau = low.width == 0 && low.count > plan.tie_limit;
  const uint32_t floor = plateau ? low.low + 1 : low.low;
  // Bins for half an octave of float32, where the k-th key is, mostly: so fine that one of them is few candidates.
  constexpr uint32_t shift = max_key < (1u << 16) ? 0 : 11;
  return {floor, shift, plateau};
}

// Where the k-th key is.
struct Found {
  Band band;
  bool stored;  // whether its elements are candidates; else they all tie, and Shared::ties counts them
};

// Where the histogram that all blocks have added to crosses `rank`.
MSTOPK_DEVICE Crossing FindCrossingOfGrid(const uint32_t* total, uint32_t rank, Shared& shared) {
  GridSync();
  FetchHistogram(total, shared.histogram);
  return FindCrossing(shared, rank);
}

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
    band = BinOf(band, shift, FindCrossingOfGrid(total, band.rank, shared));
  }
  return band;
}

// Streams, and narrows down where the k-th key is. `source` is read by the first pass, `again` by the second,
// which takes everything, if a misleading sample has set the floor too high. k > 0.
template <typename Store, typename Source, typename Again>
MSTOPK_DEVICE Found FindBand(const Plan& plan, const Store& store, const Source& source,
                             const Again& again, Rule rule, Shared& shared) {
  constexpr uint32_t max_key = KeyTraits<typename Source::Bits>::kMax;
  const auto count = [&](const Round& round) {
    return FindCrossingOfGrid(round.histogram, plan.k, shared);
  };
  uint32_t round = 0;
  StreamPass(plan, store, source, rule, plan.state->rounds[0], shared);
  Crossing crossing = count(plan.state->rounds[0]);
  if (crossing.total < plan.k) {
    const uint32_t ties = LoadFromOthers(&plan.state->rounds[0].ties);
    if (crossing.total + ties >= plan.k) {
      return {{rule.floor - 1, 0, plan.k - crossing.total, ties}, false};
    }
    rule = {0, CoveringShift(max_key), false};
    round = 1;
    StreamPass(plan, store, again, rule, plan.state->rounds[1], shared);
    crossing = count(plan.state->rounds[1]);
  }
  const Band all = {rule.floor, max_key - rule.floor, plan.k, crossing.total};
  const Band band = BinOf(all, rule.shift, crossing);
  return {NarrowAmongCandidates<typename Source::Bits>(plan, store, band, round, shared), true};
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_RESOLVE_H_
