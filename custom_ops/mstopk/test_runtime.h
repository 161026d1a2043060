// Runtimes for tests (every instruction set; threads that take blocks out of order), and a way to
// lie to the sample.

#ifndef CUSTOM_OPS_MSTOPK_TEST_RUNTIME_H_
#define CUSTOM_OPS_MSTOPK_TEST_RUNTIME_H_

#include <atomic>
#include <thread>
#include <vector>

#include "custom_ops/mstopk/runtime.h"
#include "custom_ops/mstopk/sample.h"

namespace mstopk {

inline std::vector<const ScanKernels*> SupportedScans() {
  std::vector<const ScanKernels*> scans = {&ScalarScan()};
  if (Avx2Scan() != nullptr) scans.push_back(Avx2Scan());
  if (Avx512Scan() != nullptr) scans.push_back(Avx512Scan());
  return scans;
}

// Where error feedback may write: apart from its inputs, or in place of one of the same width.
enum class Into { kApart, kResidual, kGrad };

template <typename Format>
std::vector<Into> IntosOf() {
  if (sizeof(typename Format::Bits) < sizeof(uint32_t)) return {Into::kApart, Into::kResidual};
  return {Into::kApart, Into::kResidual, Into::kGrad};
}

// Three threads; the last block first.
inline void BackwardsOnThreads(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{count - 1};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = next--; i >= 0; i = next--) body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Positions that the sample looks at, so that a test can lie to it.
inline std::vector<bool> SampledPositions(int64_t n, int64_t k) {
  std::vector<bool> sampled(n);
  const auto load = [&](const int64_t* positions, int64_t count, uint32_t* keys) {
    const auto mark = [&](int64_t i) {
      sampled[i] = true;
      return static_cast<uint32_t>(i);
    };
    KeysOfPieces(positions, count, mark, keys);
  };
  SampleBracket(n, k, KeyTraits<uint32_t>::kMax, load, SerialFor);
  return sampled;
}

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_TEST_RUNTIME_H_
