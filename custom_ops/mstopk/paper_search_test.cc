// The closed-form replay against the paper's own loop, which counts with every threshold.

#include "custom_ops/mstopk/paper_search.h"

#include <random>
#include <vector>

#include "custom_ops/mstopk/reference.h"
#include "custom_ops/mstopk/test_inputs.h"
#include "custom_ops/mstopk/test_runtime.h"
#include "gtest/gtest.h"

namespace mstopk {
namespace {

// Algorithm 1 with its counting passes. The run of filler elements starts at the lowest index, and
// a threshold that no element reaches counts as found (the paper would then return every element).
std::vector<int64_t> CountingSearch(const std::vector<float>& x, int64_t k, int steps) {
  double sum = 0;
  float max = 0;
  for (const float value : x) {
    sum += std::fabs(value);
    max = std::max(max, std::fabs(value));
  }
  const float mean = static_cast<float>(sum / x.size());
  const auto count_at_least = [&](float threshold) {
    int64_t count = 0;
    for (const float value : x) count += std::fabs(value) >= threshold;
    return count;
  };
  float left = 0, right = 1, upper = std::numeric_limits<float>::infinity(), lower = 0;
  for (int step = 0; step < steps; ++step) {
    const float ratio = left + (right - left) / 2;
    const float threshold = mean + ratio * (max - mean);
    if (count_at_least(threshold) <= k) {
      right = ratio;
      upper = threshold;
    } else {
      left = ratio;
      lower = threshold;
    }
  }
  std::vector<int64_t> chosen;
  int64_t fill = k - (std::isinf(upper) ? 0 : count_at_least(upper));
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const float magnitude = std::fabs(x[i]);
    if (magnitude >= upper || (magnitude >= lower && fill-- > 0)) chosen.push_back(i);
  }
  return chosen;
}

TEST(PaperTopKTest, ReplaysTheCountingSearch) {
  std::mt19937_64 random(10);
  for (const TestInput& input : TestInputs()) {
    const int64_t n = 3000;
    std::vector<float> x = input.make(n, random);
    std::vector<uint32_t> bits(n);
    bool finite = true;
    for (int64_t i = 0; i < n; ++i) {
      bits[i] = BitsFromFloat(x[i]);
      finite &= std::isfinite(x[i]);
    }
    for (const int64_t k : {1, 30, 1000}) {
      for (const int steps : {0, 1, 5, 10, 30}) {
        std::vector<uint32_t> values(k);
        std::vector<int64_t> indices(k, -1);
        const int reads = PaperTopK<Float32, int64_t>(
            bits.data(), n, k, steps, {BestScan(), SerialFor}, values.data(), indices.data());
        EXPECT_LE(reads, finite ? 5 : 4);
        EXPECT_EQ(indices, finite ? CountingSearch(x, k, steps) : ReferenceTopK(bits, k))
            << input.name << " k=" << k << " N=" << steps;
      }
    }
  }
}

TEST(PaperTopKTest, ThirtySamplingsAreExactOnSmoothData) {
  std::mt19937_64 random(11);
  const int64_t n = 40000, k = 400;
  std::vector<uint32_t> bits(n), values(k);
  for (uint32_t& b : bits) b = BitsFromFloat(std::normal_distribution<float>()(random));
  std::vector<int64_t> indices(k);
  PaperTopK<Float32, int64_t>(bits.data(), n, k, 30, {BestScan(), SerialFor}, values.data(),
                              indices.data());
  EXPECT_EQ(indices, ReferenceTopK(bits, k));
}

}  // namespace
}  // namespace mstopk
