// Brute force, for tests: a full sort of (key, index).

#ifndef CUSTOM_OPS_MSTOPK_REFERENCE_H_
#define CUSTOM_OPS_MSTOPK_REFERENCE_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "custom_ops/mstopk/key.h"

namespace mstopk {

// Indices of the k elements of largest magnitude, ties to the lowest index, in ascending order.
template <typename Bits>
std::vector<int64_t> ReferenceTopK(const std::vector<Bits>& x, int64_t k) {
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return KeyOf(x[a]) > KeyOf(x[b]); });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_REFERENCE_H_
