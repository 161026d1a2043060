// From the exact threshold to the winners, in index order, and the whole kernel's body.

#ifndef CUSTOM_OPS_MSTOPK_GPU_EMIT_H_
#define CUSTOM_OPS_MSTOPK_GPU_EMIT_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/resolve.h"
#include "custom_ops/mstopk/gpu/source.h"

namespace mstopk {
namespace gpu {

// Counts what each warp has above and at the threshold.
template <typename Bits, typename Store>
MSTOPK_DEVICE void CountWinners(const Plan& plan, const Store& store, const Threshold& threshold) {
  uint32_t above = 0;
  uint32_t ties = 0;
  store.ForEach([&](bool present, uint32_t bits, uint32_t) {
    const uint32_t key = KeyOf(static_cast<Bits>(bits));
    above += present && key > threshold.key;
    ties += present && key == threshold.key;
  });
  above = WarpSum(above);
  ties = WarpSum(ties);
  if (Lane() != 0) return;
  plan.warp_above[GlobalWarp()] = above;
  if (!threshold.ties_in_input) plan.warp_ties[GlobalWarp()] = ties;
}

struct Place {
  uint32_t above;  // winners above the threshold in the chunks before
  uint32_t ties;   // ties there
};

// Sums the counts of all warps before this one.
MSTOPK_DEVICE Place FindPlace(const Plan& plan, Shared& shared) {
  const uint32_t block_first = BlockIndex() * BlockWarps();
  Place place = {0, 0};
  for (uint32_t w = ThreadIndex(); w < block_first; w += BlockThreads()) {
    place.above += LoadShared(&plan.warp_above[w]);
    place.ties += LoadShared(&plan.warp_ties[w]);
  }
  uint32_t* const sums[2] = {&place.above, &place.ties};
  for (uint32_t* sum : sums) {
    *sum = WarpSum(*sum);
    if (Lane() == 0) shared.warp_sums[WarpInBlock()] = *sum;
    BlockSync();
    *sum = 0;
    for (uint32_t w = 0; w < BlockWarps(); ++w) *sum += shared.warp_sums[w];
    BlockSync();
  }
  for (uint32_t w = block_first; w < GlobalWarp(); ++w) {
    place.above += LoadShared(&plan.warp_above[w]);
    place.ties += LoadShared(&plan.warp_ties[w]);
  }
  return place;
}

// Writes winners one warp at a time, in the order in which they are offered.
template <typename Bits, typename Index>
struct Emitter {
  Threshold threshold;
  uint32_t out;        // next place in the output
  uint32_t ties_left;  // ties this warp may still emit
  Bits* values;
  Index* indices;

  // Returns whether this lane's element wins.
  MSTOPK_DEVICE bool Offer(bool present, uint32_t bits, uint32_t index) {
    const uint32_t key = KeyOf(static_cast<Bits>(bits));
    const bool tie = present && key == threshold.key;
    const uint32_t tie_mask = Ballot(tie);
    const bool granted =
        tie && static_cast<uint32_t>(PopCount(tie_mask & LanesBelow())) < ties_left;
    const bool wins = granted || (present && key > threshold.key);
    const uint32_t mask = Ballot(wins);
    if (wins) {
      const uint32_t place = out + PopCount(mask & LanesBelow());
      values[place] = static_cast<Bits>(bits);
      indices[place] = static_cast<Index>(index);
    }
    const uint32_t ties = PopCount(tie_mask);
    ties_left -= ties < ties_left ? ties : ties_left;
    out += PopCount(mask);
    return wins;
  }
};

// Emits this warp's winners; calls won(index) in the lane of each.
template <typename Store, typename Again, typename Index, typename Won>
MSTOPK_DEVICE void EmitWinners(const Plan& plan, const Store& store, const Again& again,
                               const Threshold& threshold, typename Again::Bits* values,
                               Index* indices, Shared& shared, Won won) {
  const Place place = FindPlace(plan, shared);
  const uint32_t warp = GlobalWarp();
  const uint32_t ties_before = place.ties < threshold.quota ? place.ties : threshold.quota;
  const uint32_t present_ties = plan.warp_ties[warp];
  const uint32_t wanted = threshold.quota - ties_before;
  const uint32_t granted = present_ties < wanted ? present_ties : wanted;
  Emitter<typename Again::Bits, Index> emitter = {threshold, place.above + ties_before, granted,
                                                  values, indices};
  if (!threshold.ties_in_input || granted == 0) {
    store.ForEach([&](bool present, uint32_t bits, uint32_t index) {
      if (emitter.Offer(present, bits, index)) won(index);
    });
    return;
  }
  const uint32_t end = emitter.out + plan.warp_above[warp] + granted;
  for (uint64_t i = uint64_t{warp} * plan.chunk; emitter.out < end; i += kWarpSize) {
    const bool present = i + Lane() < plan.n;
    const uint32_t index = static_cast<uint32_t>(i) + Lane();
    if (emitter.Offer(present, present ? again.Load(index) : 0, index)) won(index);
  }
}

// The top k of x; candidates wait in `store` (pages.h, on_chip.h).
template <typename Store, typename Bits, typename Index>
MSTOPK_DEVICE void SelectKernel(const Plan& plan, const Store& store, const VectorSource<Bits>& x,
                                Bits* values, Index* indices) {
  Shared& shared = *reinterpret_cast<Shared*>(SharedMemory());
  const Threshold threshold = FindThreshold(plan, store, x, x, shared);
  CountWinners<Bits>(plan, store, threshold);
  GridSync();
  EmitWinners(plan, store, x, threshold, values, indices, shared, [](uint32_t) {});
}

// acc = residual + grad, its top k, and the new residual; see ../error_feedback.h.
template <typename Store, typename Format, typename Index>
MSTOPK_DEVICE void ErrorFeedbackKernel(const Plan& plan, const Store& store,
                                       const SumSource<Format>& sum, uint32_t* values,
                                       Index* indices, bool* all_finite) {
  Shared& shared = *reinterpret_cast<Shared*>(SharedMemory());
  const VectorSource<uint32_t> acc = {sum.sum, sum.aligned};
  const Threshold threshold = FindThreshold(plan, store, sum, acc, shared);
  CountWinners<uint32_t>(plan, store, threshold);
  GridSync();
  const bool finite = LoadShared(&plan.state->non_finite) == 0;
  if (GlobalWarp() == 0 && Lane() == 0) *all_finite = finite;
  if (plan.k > 0) {
    EmitWinners(plan, store, acc, threshold, values, indices, shared, [&](uint32_t index) {
      if (finite) sum.sum[index] = 0;
    });
  }
  if (finite) return;
  WarpSync();  // this warp's chunk is not read again: undo what its first pass stored
  const uint64_t begin = uint64_t{GlobalWarp()} * plan.chunk;
  for (uint64_t i = begin + Lane(); i < begin + plan.chunk && i < plan.n; i += kWarpSize) {
    sum.sum[i] = sum.residual[i];
  }
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_EMIT_H_
