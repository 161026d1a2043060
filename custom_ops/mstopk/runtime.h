// What an algorithm needs from its surroundings: kernels for this processor, and threads.

#ifndef CUSTOM_OPS_MSTOPK_RUNTIME_H_
#define CUSTOM_OPS_MSTOPK_RUNTIME_H_

#include <cstdint>
#include <functional>

#include "custom_ops/mstopk/scan.h"

namespace mstopk {

// Calls body(0) ... body(count - 1), in any order and perhaps concurrently, and waits for them.
using ParallelFor = std::function<void(int64_t count, const std::function<void(int64_t)>& body)>;

struct Runtime {
  const ScanKernels& kernels;
  ParallelFor parallel_for;
};

inline void SerialFor(int64_t count, const std::function<void(int64_t)>& body) {
  for (int64_t i = 0; i < count; ++i) body(i);
}

// Work is split into blocks of this many elements whatever the number of threads. One block is
// about a L2 cache of float32, and short enough that a vector of that length is not worth a thread.
constexpr int64_t kBlockElements = int64_t{1} << 18;

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_RUNTIME_H_
