// Sums of squares of many arrays, in one read of each.
//
// For each segment, a pair of float arrays w and x of n elements and a number c:
//   sums[0] = Σ w[i]²      sums[1] = Σ (x[i] + c w[i])²
// A square of a float is exact in double, and sums are kept in double: no overflow, and the relative
// error is below n 2^-53 whatever the order, where plain float sums of 23 million elements are per
// cents off. x + c w is rounded to float first, as an update that uses it would round it. (Squares of
// doubles may overflow, and denormal numbers count as 0 where the calling thread flushes them.)
//
// The result does not depend on threads or on the instruction set: each segment is cut into blocks of
// kBlockElements, a block is summed in kLanes interleaved sums that are added pairwise, and the blocks
// are added in order. NaN and infinity propagate.

#ifndef CUSTOM_OPS_SEGMENTED_NORMS_SEGMENTED_NORMS_H_
#define CUSTOM_OPS_SEGMENTED_NORMS_SEGMENTED_NORMS_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace segmented_norms {

constexpr int64_t kBlockElements = int64_t{1} << 16;
constexpr int kLanes = 32;

template <typename T>
struct Segment {
  const T* w;
  const T* x;
  int64_t size;
  T c;
};

struct Sums {
  double w;
  double x;
};

// Sums one block. One of these per instruction set; all give the same bits.
template <typename T>
using SumBlockFn = Sums (*)(const T* w, const T* x, int64_t n, T c);

template <typename T>
Sums SumBlockBaseline(const T* w, const T* x, int64_t n, T c);
// nullptr where the processor lacks the instructions.
template <typename T>
SumBlockFn<T> SumBlockAvx2();
template <typename T>
SumBlockFn<T> SumBlockAvx512();
// The fastest that this processor runs.
template <typename T>
SumBlockFn<T> BestSumBlock();

// Calls body(0) ... body(count - 1), in any order and perhaps concurrently, and waits for them.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& body)>;

// sums[2 s] and sums[2 s + 1] for segment s. T is float or double.
template <typename T>
void SegmentedNorms(const std::vector<Segment<T>>& segments, SumBlockFn<T> sum_block,
                    const ParallelFor& parallel_for, double* sums);

}  // namespace segmented_norms

#endif  // CUSTOM_OPS_SEGMENTED_NORMS_SEGMENTED_NORMS_H_
