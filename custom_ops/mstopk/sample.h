// A bracket around the k-th largest key, guessed from a small deterministic sample.

#ifndef CUSTOM_OPS_MSTOPK_SAMPLE_H_
#define CUSTOM_OPS_MSTOPK_SAMPLE_H_

#include <cstdint>
#include <functional>

#include "custom_ops/mstopk/rank.h"

namespace mstopk {

// Copies the keys of elements [position, position + count) to `keys`.
using KeyLoader = std::function<void(int64_t position, int64_t count, uint32_t* keys)>;

struct Guess {
  KeyRange range;        // the k-th largest key is very probably in [low, high]
  double expected;       // elements expected at or above range.low
  double expected_ties;  // elements expected at exactly range.low
};

// Guesses for k of n elements, 0 < k <= n. A wrong guess costs the caller time, never correctness.
// Vectors too short to be worth sampling get range.low == 0, which admits everything.
Guess SampleBracket(int64_t n, int64_t k, uint32_t max_key, const KeyLoader& load);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_SAMPLE_H_
