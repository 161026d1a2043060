// Candidates in global memory: each warp appends to a chain of pages of its own.
//
// They wait in shared memory until there are 32, one per lane: so writes are whole rows, in order, and whatever a
// candidate costs is paid for 32 at once. No atomic operation per element in global memory: one per page.

#ifndef CUSTOM_OPS_MSTOPK_GPU_PAGES_H_
#define CUSTOM_OPS_MSTOPK_GPU_PAGES_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/block.h"
#include "custom_ops/mstopk/gpu/chunk.h"
#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/gpu/stream.h"

namespace mstopk {
namespace gpu {

constexpr uint32_t kWaiting = (1 + kRowsPerTurn) * kWarpSize;  // candidates at most, at the end of a turn

// The chain of pages of one warp; every lane holds the same values.
template <typename Bits>
struct Chain {
  const Plan& plan;
  Round& round;
  const Rule rule;
  Shared& shared;
  uint32_t* const waiting_bits;   // [kWaiting]
  uint32_t* const waiting_index;  // [kWaiting]
  uint32_t waiting = 0;
  uint32_t count = 0;  // candidates in pages
  uint32_t page = 0;   // the last of the chain
  uint32_t ties = 0;

  // Stores those of the elements from `first` on that the rule asks for: lane i has the i-th of each row. Of all
  // rows together, `valid` elements exist. Votes come first: one branch mostly skips the rest.
  MSTOPK_DEVICE void Take(const Bits (&bits)[kRowsPerTurn], uint32_t first, uint32_t valid) {
    const uint32_t least = rule.floor - rule.count_ties;
    uint32_t hits[kRowsPerTurn];
    uint32_t any = 0;
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRowsPerTurn; ++row) {
      hits[row] = Ballot(KeyOf(bits[row]) >= least && row * kWarpSize + Lane() < valid);
      any |= hits[row];
    }
    if (any == 0) return;
    if (rule.count_ties) {
      MSTOPK_UNROLL
      for (uint32_t row = 0; row < kRowsPerTurn; ++row) {
        const uint32_t above = Ballot(KeyOf(bits[row]) >= rule.floor) & hits[row];
        ties += PopCount(hits[row]) - PopCount(above);
        hits[row] = above;
      }
    }
    MSTOPK_UNROLL
    for (uint32_t row = 0; row < kRowsPerTurn; ++row) {
      if (hits[row] >> Lane() & 1) {
        const uint32_t slot = waiting + PopCount(hits[row] & LanesBelow());
        waiting_bits[slot] = bits[row];
        waiting_index[slot] = first + row * kWarpSize + Lane();
      }
      waiting += PopCount(hits[row]);
    }
    if (waiting >= kWarpSize) StoreFullRows();
  }

  MSTOPK_DEVICE void Close() {
    WarpSync();
    if (waiting != 0) Store(0, waiting);
    if (Lane() != 0) return;
    plan.warp_count[GlobalWarp()] = count;
    shared.ties[WarpInBlock()] = ties;
    if (ties != 0) AtomicAdd(&round.ties, ties);
  }

 private:
  MSTOPK_DEVICE void StoreFullRows() {
    WarpSync();
    uint32_t done = 0;
    for (; done + kWarpSize <= waiting; done += kWarpSize) Store(done, kWarpSize);
    waiting -= done;
    if (Lane() < waiting) {
      waiting_bits[Lane()] = waiting_bits[done + Lane()];
      waiting_index[Lane()] = waiting_index[done + Lane()];
    }
    WarpSync();
  }

  // Counts and stores `number` <= 32 of those that wait, from `first` on.
  MSTOPK_DEVICE void Store(uint32_t first, uint32_t number) {
    if (count % kPageSlots == 0) Grow();
    if (Lane() < number) {
      const uint32_t bits = waiting_bits[first + Lane()];
      const uint32_t bin = (KeyOf(static_cast<Bits>(bits)) - rule.floor) >> rule.shift;
      AtomicAdd(&shared.histogram[bin < kBins ? bin : kBins - 1], 1);
      const uint64_t slot = uint64_t{page} * kPageSlots + count % kPageSlots + Lane();
      plan.page_bits[slot] = bits;
      plan.page_index[slot] = waiting_index[first + Lane()];
    }
    count += number;
  }

  // Adds a page to the chain.
  MSTOPK_DEVICE void Grow() {
    uint32_t fresh = Lane() == 0 ? AtomicAdd(&round.pages, 1) : 0;
    fresh = Broadcast(fresh, 0);
    if (Lane() == 0) (count == 0 ? plan.warp_first[GlobalWarp()] : plan.page_next[page]) = fresh;
    page = fresh;
  }
};

template <typename Bits>
struct Pages {
  static constexpr uint32_t kWordsPerWarp = 2 * kWaiting;  // of shared memory
  static constexpr uint32_t kRowsAtOnce = 16;  // that a warp loads before it looks at the first
  const Plan& plan;

  // For a pass over this warp's chunk: what it has stored before is forgotten.
  MSTOPK_DEVICE Chain<Bits> Open(Round& round, const Rule& rule, Shared& shared) const {
    uint32_t* const waiting = SharedMemory() + kSharedWords + WarpInBlock() * kWordsPerWarp;
    return {plan, round, rule, shared, waiting, waiting + kWaiting};
  }

  // Calls visit(present, bits, index) for the candidates of this warp in order, one per lane at a time.
  template <typename Visit>
  MSTOPK_DEVICE void ForEach(Visit visit) const {
    constexpr uint32_t kRows = kPageSlots / kWarpSize;
    const uint32_t count = plan.warp_count[GlobalWarp()];
    uint32_t page = count != 0 ? plan.warp_first[GlobalWarp()] : 0;
    for (uint32_t done = 0; done < count; done += kPageSlots) {
      if (done != 0) page = plan.page_next[page];
      uint32_t bits[kRows], index[kRows];  // all on their way at once
      MSTOPK_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        const uint64_t slot = uint64_t{page} * kPageSlots + row * kWarpSize + Lane();
        const bool present = done + row * kWarpSize + Lane() < count;
        bits[row] = present ? plan.page_bits[slot] : 0;
        index[row] = present ? plan.page_index[slot] : 0;
      }
      MSTOPK_UNROLL
      for (uint32_t row = 0; row < kRows; ++row) {
        if (done + row * kWarpSize >= count) break;
        visit(done + row * kWarpSize + Lane() < count, bits[row], index[row]);
      }
    }
  }
};

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_PAGES_H_
