// The elements that one pass over the input admits, kept per block and in index order.

#ifndef CUSTOM_OPS_MSTOPK_CANDIDATES_H_
#define CUSTOM_OPS_MSTOPK_CANDIDATES_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "custom_ops/mstopk/rank.h"
#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Candidates of one block of the input: element bits and offsets from the block's first element.
template <typename Bits>
class CandidateBlock {
 public:
  CandidateBlock() = default;
  // They go to `bits` and `offsets` while they are at most `room`, then to memory of the block's own.
  CandidateBlock(Bits* bits, uint32_t* offsets, int64_t room)
      : room_(room), bits_(bits), offsets_(offsets) {}

  void Append(const Bits* bits, const uint32_t* offsets, int64_t count);
  int64_t size() const { return size_; }
  const Bits* bits() const { return bits_; }
  const uint32_t* offsets() const { return offsets_; }

 private:
  int64_t size_ = 0, room_ = 0;
  Bits* bits_ = nullptr;
  uint32_t* offsets_ = nullptr;
  std::unique_ptr<Bits[]> own_bits_;
  std::unique_ptr<uint32_t[]> own_offsets_;
};

template <typename Bits>
struct Candidates {
  std::vector<CandidateBlock<Bits>> blocks;  // block b starts at element b * kBlockElements
  bool complete = true;                      // false when AdmissionRule::limit was hit
  // Of all blocks together: many small pieces would be given back to the system, and cleared by it for the
  // next call, which takes as long as to fill them several times.
  std::unique_ptr<Bits[]> bits;
  std::unique_ptr<uint32_t[]> offsets;

  int64_t Size() const;
  std::vector<Span<Bits>> Spans() const;
};

// What to admit: every key >= certain; of the keys in [floor, certain), at least the first
// `tie_quota` of the whole input. Gives up when more than about `limit` others are admitted.
struct AdmissionRule {
  uint32_t floor;
  uint32_t certain;
  int64_t tie_quota = kUnlimited;
  int64_t limit = kUnlimited;
  double expected = 0;  // elements, for which there is room at once

  static AdmissionRule AtLeast(uint32_t floor) { return {floor, floor}; }
};

// Scans elements [begin, begin + count) as scan.h's CollectFn does.
template <typename Bits>
using ScanRange = std::function<int64_t(int64_t begin, int64_t count, uint32_t floor,
                                        uint32_t first_offset, Bits* bits, uint32_t* offsets)>;

// One pass over n elements. With `visit_all`, a pass that gives up still scans to the end (with a
// floor that admits nothing), for scans that do more than collect.
template <typename Bits>
Candidates<Bits> CollectCandidates(int64_t n, const AdmissionRule& rule, bool visit_all,
                                   const ScanRange<Bits>& scan, const ParallelFor& parallel_for);

// Writes the k winners in index order: every candidate with key >= certain, then the first of those
// in [floor, certain) until there are k. At most k may be certain; enough of the others must exist.
template <typename Bits, typename Index>
void EmitWinners(const Candidates<Bits>& candidates, uint32_t floor, uint32_t certain, int64_t k,
                 const ParallelFor& parallel_for, Bits* values, Index* indices);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_CANDIDATES_H_
