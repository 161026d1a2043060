// From the band of the k-th key to the winners, in index order, and the whole kernel's body.

#ifndef CUSTOM_OPS_MSTOPK_GPU_EMIT_H_
#define CUSTOM_OPS_MSTOPK_GPU_EMIT_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/block.h"
#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/resolve.h"
#include "custom_ops/mstopk/gpu/source.h"

namespace mstopk {
namespace gpu {

// Counts each warp's candidates above the band, and lists those within it for every block to see; of a band
// that is one key it counts them.
template <typename Bits, typename Store>
MSTOPK_DEVICE void ListFinalists(const Plan& plan, const Store& store, const Found& found,
                                 Shared& shared) {
  const Band& band = found.band;
  const bool listed = band.width != 0;
  uint32_t above = 0;
  uint32_t within = 0;
  store.ForEach([&](bool present, uint32_t bits, uint32_t) {
    const uint32_t key = KeyOf(static_cast<Bits>(bits));
    above += present && key > band.low + band.width;
    within += present && key - band.low <= band.width;
  });
  above = WarpSum(above);
  within = WarpSum(within);
  if (Lane() == 0) {
    shared.above[WarpInBlock()] = above;
    shared.warp_sums[WarpInBlock()] = within;
    if (found.stored) shared.ties[WarpInBlock()] = listed ? 0 : within;
  }
  BlockSync();
  if (WarpInBlock() == 0) {
    const bool has_warp = Lane() < kBlockWarps;
    const uint32_t block_above = WarpSum(has_warp ? shared.above[Lane()] : 0);
    const uint32_t block_ties = WarpSum(has_warp ? shared.ties[Lane()] : 0);
    const uint32_t block_within = WarpSum(has_warp ? shared.warp_sums[Lane()] : 0);
    if (Lane() == 0) {
      plan.block_above[BlockIndex()] = block_above;
      plan.block_ties[BlockIndex()] = block_ties;
      if (listed) shared.result[0] = AtomicAdd(&plan.state->finalists, block_within);
    }
  }
  if (!listed) return;

  BlockSync();
  uint32_t slot = shared.result[0];
  slot += WarpSum(Lane() < WarpInBlock() ? shared.warp_sums[Lane()] : 0);
  if (within == 0) return;
  store.ForEach([&](bool present, uint32_t bits, uint32_t) {
    const uint32_t key = KeyOf(static_cast<Bits>(bits));
    const bool listing = present && key - band.low <= band.width;
    const uint32_t mask = Ballot(listing);
    if (listing) {
      const uint32_t place = slot + PopCount(mask & LanesBelow());
      plan.finalist_key[place] = key;
      plan.finalist_warp[place] = GlobalWarp();
    }
    slot += PopCount(mask);
  });
}

// Where this warp's winners go.
struct Place {
  uint32_t above_before;  // elements above the k-th key in the chunks before
  uint32_t ties_before;   // that equal it
  uint32_t above, ties;   // the same in this warp's
};

// Adds up the counts of all warps up to this one. `key` is the k-th largest.
MSTOPK_DEVICE Place FindPlace(const Plan& plan, uint32_t key, uint32_t finalists, Shared& shared) {
  const uint32_t block_first = BlockIndex() * kBlockWarps;
  Place place = {};
  BlockSync();
  for (uint32_t b = ThreadIndex(); b < BlockIndex(); b += kThreads) {
    place.above_before += LoadFromOthers(&plan.block_above[b]);
    place.ties_before += LoadFromOthers(&plan.block_ties[b]);
  }
  constexpr uint32_t kAtOnce = 4;
  for (uint32_t done = 0; done < finalists; done += kAtOnce * kThreads) {
    uint32_t keys[kAtOnce], warps[kAtOnce];
    MSTOPK_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const uint32_t i = done + j * kThreads + ThreadIndex();
      keys[j] = i < finalists ? LoadFromOthers(&plan.finalist_key[i]) : 0;
      warps[j] = i < finalists ? LoadFromOthers(&plan.finalist_warp[i]) : plan.warps;
    }
    MSTOPK_UNROLL
    for (uint32_t j = 0; j < kAtOnce; ++j) {
      const bool above = keys[j] > key;
      const bool tie = keys[j] == key;
      if (warps[j] < block_first) {
        place.above_before += above;
        place.ties_before += tie;
      } else if (warps[j] < block_first + kBlockWarps && (above || tie)) {
        AtomicAdd(above ? &shared.above[warps[j] - block_first] : &shared.ties[warps[j] - block_first],
                  1);
      }
    }
  }
  place.above_before = BlockSum(place.above_before, shared);
  place.ties_before = BlockSum(place.ties_before, shared);
  const bool before = Lane() < WarpInBlock();
  place.above_before += WarpSum(before ? shared.above[Lane()] : 0);
  place.ties_before += WarpSum(before ? shared.ties[Lane()] : 0);
  place.above = shared.above[WarpInBlock()];
  place.ties = shared.ties[WarpInBlock()];
  return place;
}

// Writes winners one warp at a time, in the order in which they are offered.
template <typename Bits, typename Index>
struct Emitter {
  uint32_t threshold;  // the k-th largest key
  uint32_t out;        // next place in the output
  uint32_t ties_left;  // ties this warp may still emit
  Bits* values;
  Index* indices;

  // Returns whether this lane's element wins.
  MSTOPK_DEVICE bool Offer(bool present, uint32_t bits, uint32_t index) {
    const uint32_t key = KeyOf(static_cast<Bits>(bits));
    const bool tie = present && key == threshold;
    const uint32_t tie_mask = Ballot(tie);
    const bool granted =
        tie && static_cast<uint32_t>(PopCount(tie_mask & LanesBelow())) < ties_left;
    const bool wins = granted || (present && key > threshold);
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
                               const Found& found, typename Again::Bits* values, Index* indices,
                               Shared& shared, Won won) {
  Band kth = found.band;
  const uint32_t finalists = kth.width != 0 ? kth.count : 0;
  if (finalists != 0) kth = SelectInBlock(plan.finalist_key, finalists, kth, 0, shared);
  const Place place = FindPlace(plan, kth.low, finalists, shared);
  const uint32_t ties_before = place.ties_before < kth.rank ? place.ties_before : kth.rank;
  const uint32_t left = kth.rank - ties_before;
  const uint32_t granted = place.ties < left ? place.ties : left;
  Emitter<typename Again::Bits, Index> emitter = {kth.low, place.above_before + ties_before,
                                                  granted, values, indices};
  if (found.stored || granted == 0) {
    store.ForEach([&](bool present, uint32_t bits, uint32_t index) {
      if (emitter.Offer(present, bits, index)) won(index);
    });
    return;
  }
  constexpr uint32_t kRows = 16;  // on their way at once
  const Chunk chunk = ChunkOfWarp(plan);
  const uint32_t end = emitter.out + place.above + granted;
  for (uint32_t done = 0; done < chunk.length && emitter.out < end; done += kRows * kWarpSize) {
    typename Again::Bits bits[kRows];
    const auto at = [&](uint32_t row) { return done + row * kWarpSize + Lane(); };
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      bits[row] = at(row) < chunk.length ? again.Peek(chunk.begin + at(row)) : 0;
    }
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      const uint32_t index = chunk.begin + at(row);
      if (emitter.Offer(at(row) < chunk.length, bits[row], index)) won(index);
    }
  }
}

// The top k of x; candidates wait in `store` (pages.h, on_chip.h). k > 0.
template <typename Store, typename Bits, typename Index>
MSTOPK_DEVICE void SelectKernel(const Plan& plan, const Store& store, const VectorSource<Bits>& x,
                                Bits* values, Index* indices) {
  Shared& shared = *reinterpret_cast<Shared*>(SharedMemory());
  const Rule rule = FirstRule(plan, x, shared);
  const Found found = FindBand(plan, store, x, x, rule, shared);
  ListFinalists<Bits>(plan, store, found, shared);
  GridSync();
  EmitWinners(plan, store, x, found, values, indices, shared, [](uint32_t) {});
}

// acc = residual + grad, its top k, and the new residual; see ../error_feedback.h.
template <typename Store, typename Format, typename Index>
MSTOPK_DEVICE void ErrorFeedbackKernel(const Plan& plan, const Store& store,
                                       const SumSource<Format>& sum, uint32_t* values,
                                       Index* indices, bool* all_finite) {
  Shared& shared = *reinterpret_cast<Shared*>(SharedMemory());
  const VectorSource<uint32_t> acc = {sum.sum};
  const Rule rule = FirstRule(plan, sum, shared);
  Found found = {};
  if (plan.k > 0) {
    found = FindBand(plan, store, sum, acc, rule, shared);
    ListFinalists<uint32_t>(plan, store, found, shared);
  } else {
    StreamPass(plan, store, sum, rule, plan.state->rounds[0], shared);
  }
  GridSync();
  const bool finite = LoadFromOthers(&plan.state->non_finite) == 0;
  if (GlobalWarp() == 0 && Lane() == 0) *all_finite = finite;
  if (plan.k > 0) {
    EmitWinners(plan, store, acc, found, values, indices, shared, [&](uint32_t index) {
      if (finite) sum.sum[index] = 0;
    });
  }
  if (finite) return;
  WarpSync();  // this warp's chunk is not read again: undo what its first pass stored
  const Chunk chunk = ChunkOfWarp(plan);
  for (uint32_t offset = Lane(); offset < chunk.length; offset += kWarpSize) {
    sum.sum[chunk.begin + offset] = sum.residual[chunk.begin + offset];
  }
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_EMIT_H_
