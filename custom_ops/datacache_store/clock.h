// The clock by which the cache's statistics are kept.

#ifndef CUSTOM_OPS_DATACACHE_STORE_CLOCK_H_
#define CUSTOM_OPS_DATACACHE_STORE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace datacache {

inline int64_t Microseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_CLOCK_H_
