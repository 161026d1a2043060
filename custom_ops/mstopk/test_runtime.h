// Runtimes for tests: every instruction set, serial or on threads that take blocks out of order.

#ifndef CUSTOM_OPS_MSTOPK_TEST_RUNTIME_H_
#define CUSTOM_OPS_MSTOPK_TEST_RUNTIME_H_

#include <atomic>
#include <thread>
#include <vector>

#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

inline std::vector<const ScanKernels*> SupportedScans() {
  std::vector<const ScanKernels*> scans = {&ScalarScan()};
  if (Avx2Scan() != nullptr) scans.push_back(Avx2Scan());
  if (Avx512Scan() != nullptr) scans.push_back(Avx512Scan());
  return scans;
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

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_TEST_RUNTIME_H_
