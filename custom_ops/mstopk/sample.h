// A bracket around the k-th largest key, guessed from a small deterministic sample.

#ifndef CUSTOM_OPS_MSTOPK_SAMPLE_H_
#define CUSTOM_OPS_MSTOPK_SAMPLE_H_

#include <cstdint>
#include <functional>

#include "custom_ops/mstopk/rank.h"
#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

constexpr int64_t kPiece = 16;  // elements: a cache line of float32, of which all but one are free

// Copies the keys of kPiece elements from each of `count` positions on to `keys`, one after the other.
using KeyLoader = std::function<void(const int64_t* positions, int64_t count, uint32_t* keys)>;

// Asks for the pieces of `x` at some positions: they are far from each other, and to wait for one after the
// other takes about twice as long.
template <typename T>
void PrefetchPieces(const T* x, const int64_t* positions, int64_t count) {
  for (int64_t i = 0; i < count; ++i) __builtin_prefetch(x + positions[i]);
}

// Writes key_at(i) for each element i of the pieces to `keys`.
template <typename KeyAt>
void KeysOfPieces(const int64_t* positions, int64_t count, const KeyAt& key_at, uint32_t* keys) {
  for (int64_t piece = 0; piece < count; ++piece) {
    for (int64_t i = 0; i < kPiece; ++i) *keys++ = key_at(positions[piece] + i);
  }
}

struct Guess {
  KeyRange range;        // the k-th largest key is very probably in [low, high]
  double expected;       // elements expected at or above range.low
  double expected_ties;  // elements expected at exactly range.low
  uint32_t likely;       // keys above are probably among the k largest; range.high where k is small
};

// Guesses for k of n elements, 0 < k <= n. A wrong guess costs the caller time, never correctness.
// Vectors too short to be worth sampling get range.low == 0, which admits everything. `load` may be
// called concurrently.
Guess SampleBracket(int64_t n, int64_t k, uint32_t max_key, const KeyLoader& load,
                    const ParallelFor& parallel_for);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_SAMPLE_H_
