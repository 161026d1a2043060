// Memory of candidates that nobody uses now, kept for the next call: page faults of fresh memory take a good part
// of a call's time, and two threads wait for each other in them.

#ifndef CUSTOM_OPS_MSTOPK_SPARE_BLOCKS_H_
#define CUSTOM_OPS_MSTOPK_SPARE_BLOCKS_H_

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "custom_ops/mstopk/candidates.h"

namespace mstopk {

constexpr int64_t kSpareBytes = int64_t{64} << 20;  // at most: 1 % of 2^28 elements take some 60 MB

// Of one process and one type of elements. Calls may come from any thread.
template <typename Bits>
class SpareBlocks {
 public:
  static SpareBlocks& OfProcess() {
    static SpareBlocks* const spare = new SpareBlocks;  // never deleted: threads may outlive main()
    return *spare;
  }

  // `count` empty blocks, with memory as far as there are spare ones.
  std::vector<CandidateBlock<Bits>> Take(int64_t count) {
    std::vector<CandidateBlock<Bits>> taken;
    taken.reserve(count);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (!blocks_.empty() && static_cast<int64_t>(taken.size()) < count) {
        taken.push_back(std::move(blocks_.back()));
        blocks_.pop_back();
        bytes_ -= taken.back().Bytes();
        taken.back().size = 0;
      }
    }
    taken.resize(count);
    return taken;
  }

  // Keeps blocks up to kSpareBytes, and lets the others go.
  void Give(std::vector<CandidateBlock<Bits>> blocks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (CandidateBlock<Bits>& block : blocks) {
      if (bytes_ + block.Bytes() > kSpareBytes) continue;
      bytes_ += block.Bytes();
      blocks_.push_back(std::move(block));
    }
  }

 private:
  std::mutex mutex_;
  std::vector<CandidateBlock<Bits>> blocks_;
  int64_t bytes_ = 0;
};

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_SPARE_BLOCKS_H_
