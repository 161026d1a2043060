// One pass over the input: each warp reads its chunk, a row of 32 elements at a time, and offers some rows per turn
// to the store.

#ifndef CUSTOM_OPS_MSTOPK_GPU_STREAM_H_
#define CUSTOM_OPS_MSTOPK_GPU_STREAM_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/block.h"
#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/source.h"

namespace mstopk {
namespace gpu {

// What a pass looks for. Elements with key >= floor are stored, and counted in bins of 2^shift keys (the
// last bin takes all that lie beyond); those that equal floor - 1 are counted if `count_ties`.
struct Rule {
  uint32_t floor;
  uint32_t shift;
  bool count_ties;
};

// `store` takes the candidates (pages.h, on_chip.h).
template <typename Store, typename Source>
MSTOPK_DEVICE void StreamPass(const Plan& plan, const Store& store, Source source, const Rule& rule,
                              Round& round, Shared& shared) {
  constexpr uint32_t kRows =
      Store::kRowsAtOnce < Source::kRowsAtOnce ? Store::kRowsAtOnce : Source::kRowsAtOnce;
  static_assert(kRows % kRowsPerTurn == 0, "whole turns");
  const Chunk chunk = ChunkOfWarp(plan);
  ClearHistogram(shared.histogram);
  auto open = store.Open(round, rule, shared);
  uint32_t done = 0;
  for (; done + kRows * kWarpSize <= chunk.length; done += kRows * kWarpSize) {
    typename Source::Fetched fetched[kRows];
    const uint64_t first = uint64_t{chunk.begin} + done + Lane();
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) fetched[row] = source.Fetch(first + row * kWarpSize);
    MSTOPK_UNROLL
    for (uint32_t turn = 0; turn < kRows; turn += kRowsPerTurn) {
      typename Source::Bits bits[kRowsPerTurn];
      MSTOPK_UNROLL
      for (uint32_t i = 0; i < kRowsPerTurn; ++i) {
        const uint32_t row = turn + i;
        bits[i] = source.Finish(first + row * kWarpSize, fetched[row]);
      }
      open.Take(bits, chunk.begin + done + turn * kWarpSize, kRowsPerTurn * kWarpSize);
    }
  }
  for (; done < chunk.length; done += kRowsPerTurn * kWarpSize) {
    typename Source::Bits bits[kRowsPerTurn] = {};
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRowsPerTurn; ++row) {
      const uint32_t offset = done + row * kWarpSize + Lane();
      const uint64_t i = uint64_t{chunk.begin} + offset;
      if (offset < chunk.length) bits[row] = source.Finish(i, source.Fetch(i));
    }
    open.Take(bits, chunk.begin + done, chunk.length - done);
  }
  open.Close();
  const bool non_finite = Ballot(source.FoundNonFinite()) != 0;
  if (Lane() == 0 && non_finite) plan.state->non_finite = 1;
  FlushHistogram(shared.histogram, round.histogram);
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_STREAM_H_
