// C entry points for the benchmark: floors that no selection can beat, and the bare algorithm.

#pragma GCC optimize("O3")  // at -O2 GCC 12 vectorises next to nothing, not even an addition

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "custom_ops/mstopk/error_feedback.h"
#include "custom_ops/mstopk/mstopk.h"

namespace {

using mstopk::kBlockElements;
using mstopk::KeyOf;

int64_t Blocks(int64_t n) { return (n + kBlockElements - 1) / kBlockElements; }

// One thread beside the caller that waits for work, as TensorFlow's pool does.
class Helper {
 public:
  void Start(const std::function<void()>& work) { Set(&work); }
  void Join() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return work_ == nullptr; });
  }

 private:
  void Set(const std::function<void()>* work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_ = work;
    changed_.notify_all();
  }
  void Serve() {
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return work_ != nullptr; });
      }
      (*work_)();
      Set(nullptr);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;
  std::thread thread_{[this] { Serve(); }};
};

mstopk::ParallelFor OnTwoThreads() {
  static Helper* const helper = new Helper;  // never ends
  return [](int64_t count, const std::function<void(int64_t)>& body) {
    if (count <= 1) return mstopk::SerialFor(count, body);  // as in kernels/cpu_runtime.h
    std::atomic<int64_t> next{0};
    const std::function<void()> work = [&] {
      for (int64_t i = next++; i < count; i = next++) body(i);
    };
    helper->Start(work);
    work();
    helper->Join();
  };
}

// One or two.
mstopk::ParallelFor OnThreads(int threads) {
  return threads == 1 ? mstopk::ParallelFor(mstopk::SerialFor) : OnTwoThreads();
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
void bench_add(const float* __restrict grad, float* __restrict residual, int64_t n) {
  for (int64_t i = 0; i < n; ++i) residual[i] += grad[i];
}

}  // extern "C"
