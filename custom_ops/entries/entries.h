// Sums and replacements at few places of long vectors.
//
// An entry is a value and an index. TensorFlow's scatter operations treat each as a slice, at the cost of many
// memory accesses. Here it is one, prefetched, or in a cache.
//
// The entries of a place are taken in their order, so that the result depends on neither threads nor instruction
// sets (but for subnormal numbers, where a thread flushes them). Indices are checked: they come from other machines.

#ifndef CUSTOM_OPS_ENTRIES_ENTRIES_H_
#define CUSTOM_OPS_ENTRIES_ENTRIES_H_

#include <cstdint>

namespace entries {

constexpr int64_t kAllInside = -1;

// out[indices[i]] += values[i] for i = 0 ... count - 1; indices may repeat.
//
// Returns kAllInside, or the first i whose index is not in [0, n), at which it stops. `finite` becomes false
// where a sum is NaN or infinite on its way: it cannot become finite again.
int64_t Add(const float* values, const int32_t* indices, int64_t count, int64_t n, float* out,
            bool* finite);

// Whether the indices of each of `rows` rows of `count` do not fall, and are in [0, n).
bool Rise(const int32_t* indices, int64_t rows, int64_t count, int64_t n);

// out[begin ... end) becomes what rows of rising indices add up to there, row by row, while a cache holds it.
// `finite` as in Add().
void SumBlock(const float* values, const int32_t* indices, int64_t rows, int64_t count, int64_t begin,
              int64_t end, float* out, bool* finite);

// out[indices[i]] = values[i], or values[0] for all if `same`. Returns what Add() does.
int64_t Replace(const float* values, bool same, const int32_t* indices, int64_t count, int64_t n,
                float* out);

}  // namespace entries

#endif  // CUSTOM_OPS_ENTRIES_ENTRIES_H_
