// C entry points for the benchmark: floors that no selection can beat, and the bare algorithm.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "custom_ops/mstopk/error_feedback.h"
#include "custom_ops/mstopk/mstopk.h"

namespace {

using mstopk::kBlockElements;
using mstopk::KeyOf;

int64_t Blocks(int64_t n) { return (n + kBlockElements - 1) / kBlockElements; }

mstopk::ParallelFor OnThreads(int threads) {
  if (threads == 1) return mstopk::SerialFor;
  return [threads](int64_t count, const std::function<void(int64_t)>& body) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
      for (int64_t i = next++; i < count; i = next++) body(i);
    };
    std::vector<std::thread> others;
    for (int t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(work);
    work();
    for (std::thread& thread : others) thread.join();
  };
}

mstopk::Runtime RuntimeOf(int threads) { return {mstopk::BestScan(), OnThreads(threads)}; }

}  // namespace

extern "C" {

const char* bench_instruction_set() { return mstopk::BestScan().name; }

// Reads x once, with the streaming kernel and a floor that nothing reaches.
int64_t bench_one_read(const uint32_t* x, int64_t n, int threads) {
  std::atomic<int64_t> found{0};
  OnThreads(threads)(Blocks(n), [&](int64_t b) {
    uint32_t bits[mstopk::kScanSlack], offsets[mstopk::kScanSlack];
    const int64_t begin = b * kBlockElements;
    const int64_t length = std::min(kBlockElements, n - begin);
    found += mstopk::BestScan().collect32(x + begin, length, mstopk::KeyTraits<uint32_t>::kMax + 1,
                                          0, bits, offsets);
  });
  return found;
}

// One pass with the k-th key known beforehand: what a selection costs when nothing is left to find.
int64_t bench_oracle_filter(const uint32_t* x, int64_t n, uint32_t kth_key, uint32_t* values,
                            uint32_t* indices) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < n; begin += kBlockElements) {
    count +=
        mstopk::BestScan().collect32(x + begin, std::min(kBlockElements, n - begin), kth_key,
                                     static_cast<uint32_t>(begin), values + count, indices + count);
  }
  return count;
}

// The textbook way: select among (key, index) pairs.
void bench_nth_element(const uint32_t* x, int64_t n, int64_t k, uint32_t* values,
                       uint32_t* indices) {
  std::vector<uint64_t> pairs(n);
  for (int64_t i = 0; i < n; ++i) pairs[i] = uint64_t{KeyOf(x[i])} << 32 | static_cast<uint32_t>(i);
  std::nth_element(pairs.begin(), pairs.begin() + (k - 1), pairs.end(), std::greater<>());
  for (int64_t i = 0; i < k; ++i) {
    indices[i] = static_cast<uint32_t>(pairs[i]);
    values[i] = x[indices[i]];
  }
}

int bench_top_k32(const uint32_t* x, int64_t n, int64_t k, int threads, uint32_t* values,
                  int32_t* indices) {
  return mstopk::TopK(x, n, k, RuntimeOf(threads), values, indices);
}

int bench_top_k16(const uint16_t* x, int64_t n, int64_t k, int threads, uint16_t* values,
                  int32_t* indices) {
  return mstopk::TopK(x, n, k, RuntimeOf(threads), values, indices);
}

int bench_error_feedback(const uint32_t* grad, uint32_t* residual, int64_t n, int64_t k,
                         int threads, uint32_t* new_residual, uint32_t* values, int32_t* indices) {
  return mstopk::ErrorFeedbackTopK<mstopk::Float32>(grad, residual, n, k, RuntimeOf(threads),
                                                    new_residual, values, indices);
}

// residual += grad: the memory traffic that error feedback cannot avoid.
void bench_add(const float* grad, float* residual, int64_t n) {
  for (int64_t i = 0; i < n; ++i) residual[i] += grad[i];
}

}  // extern "C"
