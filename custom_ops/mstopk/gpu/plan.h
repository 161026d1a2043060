// How a selection is laid out on the GPU: grid, chunks, sample and workspace. Pure arithmetic.

#ifndef CUSTOM_OPS_MSTOPK_GPU_PLAN_H_
#define CUSTOM_OPS_MSTOPK_GPU_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "custom_ops/mstopk/key.h"
#include "custom_ops/mstopk/sample_ranks.h"

namespace mstopk {
namespace gpu {

constexpr uint32_t kBinBits = 11;
constexpr uint32_t kBins = 1 << kBinBits;  // of every histogram; 3 rounds of 11 bits cover a 31-bit key
constexpr uint32_t kPageSlots = 256;  // candidates per page
constexpr uint32_t kMaxRounds = 5;    // passes over the input and over the candidates, at most 4
constexpr uint32_t kChunkUnit = 256;  // chunks are multiples of this
constexpr uint32_t kSamplePiece = 16;  // consecutive elements that are sampled together
constexpr uint32_t kKeysPerThread = 16;  // of those that one block selects from
constexpr uint32_t kRowsPerTurn = 4;  // that a warp looks at before it stores what it found

// What the blocks of one launch tell each other in one round.
struct Round {
  uint32_t histogram[kBins];
  uint32_t pages;  // handed out
  uint32_t ties;   // elements that equal the tie key
};

// Cleared by the kernel.
struct State {
  Round rounds[kMaxRounds];
  uint32_t finalists;
  uint32_t non_finite;
};

// Everything a kernel needs besides its inputs and outputs. Each warp of the grid works on one
// contiguous chunk of the input and appends candidates to its own chain of pages (pages.h), or keeps
// the chunk in shared memory (on_chip.h).
struct Plan {
  uint32_t n, k;
  uint32_t warps;          // of the whole grid
  uint32_t chunk;          // elements per warp
  uint32_t samples;        // elements looked at beforehand; 0: admit everything
  uint32_t sample_rank;    // the floor is the sample's key of this rank
  uint32_t tie_limit;      // ties in the sample from which on ties are counted, not stored
  uint32_t page_count;     // 0 where all elements stay on the chip
  uint32_t max_finalists;  // candidates that every block can look at by itself: kKeysPerThread for each thread

  State* state;
  uint32_t* sample;
  uint32_t* page_bits;      // [page_count][kPageSlots]
  uint32_t* page_index;     // [page_count][kPageSlots]
  uint32_t* page_next;      // [page_count]
  uint32_t* warp_first;     // [warps], first page of the chain
  uint32_t* warp_count;     // [warps], candidates in it
  uint32_t* block_above;    // [blocks], elements that win for certain
  uint32_t* block_ties;     // [blocks], elements that equal the k-th key; 0 where there are finalists
  uint32_t* finalist_key;   // [max_finalists]
  uint32_t* finalist_warp;  // [max_finalists], whose chunk they are from
};

MSTOPK_HOST_DEVICE inline uint32_t Mix(uint32_t x) {  // the finalizer of MurmurHash3
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

// Where in a vector of n elements the sample's piece number `piece` begins: somewhere in its stratum.
MSTOPK_HOST_DEVICE inline uint32_t SampleBegin(uint32_t piece, uint32_t pieces, uint32_t n) {
  const uint32_t begin = static_cast<uint32_t>(uint64_t{piece} * n / pieces);
  const uint32_t end = static_cast<uint32_t>((uint64_t{piece} + 1) * n / pieces);
  return begin + Mix(n + piece) % (end - begin - kSamplePiece + 1);
}

// Lays out a selection of k of n elements (0 < n < 2^32) on a grid of `blocks` x `block_warps`
// warps; with `on_chip` a block keeps block_warps * chunk elements in shared memory. Pointers are
// offsets from `workspace`; *bytes becomes the size of the workspace. Call it first with workspace ==
// nullptr to learn the size.
inline Plan MakePlan(uint32_t n, uint32_t k, uint32_t blocks, uint32_t block_warps, bool on_chip,
                     char* workspace, size_t* bytes) {
  constexpr uint32_t kShortest = 1 << 14;  // below this everything is admitted
  Plan plan = {};
  plan.n = n;
  plan.k = k;
  plan.warps = blocks * block_warps;
  const uint32_t share = n / plan.warps + (n % plan.warps != 0);
  plan.chunk = (share / kChunkUnit + (share % kChunkUnit != 0)) * kChunkUnit;
  plan.max_finalists = block_warps * 32 * kKeysPerThread;

  if (!on_chip) {
    uint32_t samples = std::min(std::max(n / 256, 1u << 12), plan.max_finalists);
    samples = samples / kSamplePiece * kSamplePiece;
    const double mean = static_cast<double>(k) * samples / n;
    plan.sample_rank = static_cast<uint32_t>(LowRank(mean));
    plan.samples = n < kShortest || plan.sample_rank >= samples ? 0 : samples;
    plan.tie_limit = static_cast<uint32_t>((k + n / 64.0) * samples / n);
    // For all elements: what a sample promises, it may not keep. A warp whose chunk is whole wastes no page.
    static_assert(kChunkUnit % kPageSlots == 0, "chunks are whole pages");
    plan.page_count = n / kPageSlots + (n % kPageSlots != 0);
  }

  size_t used = 0;
  const auto reserve = [&](auto*& pointer, size_t count) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(workspace + used);
    used += (count * sizeof(*pointer) + 255) / 256 * 256;
  };
  reserve(plan.state, 1);
  reserve(plan.sample, plan.samples);
  reserve(plan.page_bits, size_t{plan.page_count} * kPageSlots);
  reserve(plan.page_index, size_t{plan.page_count} * kPageSlots);
  reserve(plan.page_next, plan.page_count);
  reserve(plan.warp_first, on_chip ? 0 : plan.warps);
  reserve(plan.warp_count, on_chip ? 0 : plan.warps);
  reserve(plan.block_above, blocks);
  reserve(plan.block_ties, blocks);
  reserve(plan.finalist_key, plan.max_finalists);
  reserve(plan.finalist_warp, plan.max_finalists);
  *bytes = used;
  return plan;
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_PLAN_H_
