// The k-th largest key of a few spans of elements.

#ifndef CUSTOM_OPS_MSTOPK_RANK_H_
#define CUSTOM_OPS_MSTOPK_RANK_H_

#include <cstdint>
#include <vector>

#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

template <typename Bits>
struct Span {
  const Bits* data;
  int64_t size;
};

// Keys [low, high], both included, among which the answer is expected. Larger keys may occur; the tighter the
// range, the finer the histogram.
struct KeyRange {
  uint32_t low;
  uint32_t high;
};

// The k-th largest key, 1 <= k <= number of elements. No key may be below range.low.
// O(elements) expected: one histogram of 1024 bins, then a selection inside the crossing bin; few elements
// are selected from at once.
template <typename Bits>
uint32_t KthLargestKey(const std::vector<Span<Bits>>& spans, int64_t k, KeyRange range,
                       const ParallelFor& parallel_for);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_RANK_H_
