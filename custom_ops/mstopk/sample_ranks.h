// Which elements of a sample very probably bracket the k-th largest element of the whole; for CPU and GPU.

#ifndef CUSTOM_OPS_MSTOPK_SAMPLE_RANKS_H_
#define CUSTOM_OPS_MSTOPK_SAMPLE_RANKS_H_

#include <cmath>
#include <cstdint>

namespace mstopk {

// Standard deviations between the expected rank and the guessed one. Elements of one piece are
// correlated in real gradients, so this is more than independent draws would need.
constexpr double kDeviations = 6.0;

// Ranks are counted from the largest; `mean` of the k largest elements are expected in the sample.

// The k-th largest element very probably is no larger than the sample's element of this rank, if it is 1 or more.
inline int64_t HighRank(double mean, double deviations = kDeviations) {
  return static_cast<int64_t>(mean - deviations * std::sqrt(mean));
}

// The k-th largest element very probably is no less than the sample's element of this rank. By Bernstein's
// bound: upwards, tails are longer.
inline int64_t LowRank(double mean) {
  constexpr double kSkew = kDeviations * kDeviations / 6;
  return static_cast<int64_t>(mean + kSkew + std::hypot(kSkew, kDeviations * std::sqrt(mean))) + 1;
}

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_SAMPLE_RANKS_H_
