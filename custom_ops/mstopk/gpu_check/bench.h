// Times of MSTopK, of other ways to do the same, and of the floors no way can beat.

#ifndef CUSTOM_OPS_MSTOPK_GPU_CHECK_BENCH_H_
#define CUSTOM_OPS_MSTOPK_GPU_CHECK_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

namespace mstopk {

struct Timing {
  std::string what;
  int64_t n, k;
  double median_us, p10_us, p90_us;
};

std::vector<Timing> RunBenchmarks();

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_CHECK_BENCH_H_
