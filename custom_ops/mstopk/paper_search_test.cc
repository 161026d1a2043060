// The closed-form replay against the paper's own loop, which counts with every threshold.

#include "custom_ops/mstopk/paper_search.h"

#include <random>
#include <type_traits>
#include <vector>

#include "custom_ops/mstopk/reference.h"
#include "custom_ops/mstopk/test_inputs.h"
#include "custom_ops/mstopk/test_runtime.h"
#include "gtest/gtest.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace mstopk {
namespace {

constexpr int64_t kManyBlocks = 2 * kBlockElements + 1;

template <typename Format>
std::vector<typename Format::Bits> BitsOf(const std::vector<float>& x) {
  std::vector<typename Format::Bits> bits(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if constexpr (std::is_same_v<Format, Float32>) bits[i] = BitsFromFloat(x[i]);
    if constexpr (std::is_same_v<Format, Float16>) bits[i] = ToFloat16Bits(x[i]);
    if constexpr (std::is_same_v<Format, BFloat16>) bits[i] = ToBFloat16Bits(x[i]);
  }
  return bits;
}

// Algorithm 1 with its counting passes. The run of filler elements starts at the lowest index, and
// a threshold that no element reaches counts as found (the paper would then return every element).
std::vector<int64_t> CountingSearch(const std::vector<float>& x, int64_t k, int steps) {
  double sum = 0;
  float max = 0;
  for (size_t begin = 0; begin < x.size(); begin += kBlockElements) {
    double of_block = 0;
    for (size_t i = begin; i < std::min<size_t>(x.size(), begin + kBlockElements); ++i) {
      of_block += std::fabs(x[i]);
      max = std::max(max, std::fabs(x[i]));
    }
    sum += of_block;
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

template <typename Format>
class PaperTopKTest : public testing::Test {
 protected:
  using Bits = typename Format::Bits;

  static std::vector<int64_t> Choose(const std::vector<Bits>& bits, int64_t k, int64_t steps,
                                     const ParallelFor& parallel_for, int most_reads = 5) {
    std::vector<Bits> values(k);
    std::vector<int64_t> indices(k, -1);
    const int reads =
        PaperTopK<Format, int64_t>(bits.data(), bits.size(), k, steps, {BestScan(), parallel_for},
                                   values.data(), indices.data());
    EXPECT_LE(reads, most_reads);
    for (int64_t i = 0; i < k; ++i) EXPECT_EQ(values[i], bits[indices[i]]);
    return indices;
  }

  // With every k and number of steps what the paper's own loop finds.
  static void ExpectReplay(const std::vector<float>& drawn, const std::vector<int64_t>& ks,
                           const std::vector<int>& numbers_of_steps,
                           const ParallelFor& parallel_for) {
    const std::vector<Bits> bits = BitsOf<Format>(drawn);
    std::vector<float> x(bits.size());
    bool finite = true;
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = Format::ToFloat(bits[i]);
      finite &= std::isfinite(x[i]);
    }
    for (const int64_t k : ks) {
      for (const int steps : numbers_of_steps) {
        EXPECT_EQ(Choose(bits, k, steps, parallel_for, finite ? 5 : 4),
                  finite ? CountingSearch(x, k, steps) : ReferenceTopK(bits, k))
            << "k=" << k << " N=" << steps;
      }
    }
  }
};

using Formats = testing::Types<Float32, Float16, BFloat16>;
TYPED_TEST_SUITE(PaperTopKTest, Formats);

TYPED_TEST(PaperTopKTest, ReplaysTheCountingSearch) {
  std::mt19937_64 random(10);
  for (const TestInput& input : TestInputs()) {
    SCOPED_TRACE(input.name);
    this->ExpectReplay(input.make(3000, random), {1, 30, 1000}, {0, 1, 5, 10, 30}, SerialFor);
  }
}

TYPED_TEST(PaperTopKTest, ReplaysItOverSeveralBlocksOnThreads) {
  std::mt19937_64 random(12);
  for (const TestInput& input : TestInputs()) {
    if (input.name != "normal" && input.name != "few_values" && input.name != "denormal") continue;
    SCOPED_TRACE(input.name);
    this->ExpectReplay(input.make(kManyBlocks, random), {1000}, {3, 30}, BackwardsOnThreads);
  }
}

TYPED_TEST(PaperTopKTest, DenormalsCountWhereThreadsFlushThem) {
#if defined(__SSE2__)
  std::mt19937_64 random(13);
  std::vector<float> drawn(2000);
  for (float& value : drawn) value = std::normal_distribution<float>()(random) * 1e-40f;
  const auto bits = BitsOf<TypeParam>(drawn);
  const std::vector<int64_t> expected = this->Choose(bits, 40, 12, SerialFor);
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);
  const std::vector<int64_t> found = this->Choose(bits, 40, 12, SerialFor);
  _mm_setcsr(saved);
  EXPECT_EQ(found, expected);
#endif
}

TYPED_TEST(PaperTopKTest, LimitsOfLengthAndK) {
  const auto one = BitsOf<TypeParam>({-2.0f});
  EXPECT_EQ(this->Choose(one, 0, 30, SerialFor), std::vector<int64_t>{});
  EXPECT_EQ(this->Choose(one, 1, 30, SerialFor), std::vector<int64_t>{0});
  EXPECT_EQ(this->Choose(BitsOf<TypeParam>({1.0f, 3.0f}), 2, 30, SerialFor),
            (std::vector<int64_t>{0, 1}));
}

TYPED_TEST(PaperTopKTest, EndsWhenNoStepChangesAnything) {
  std::mt19937_64 random(14);
  std::vector<float> drawn(1000);
  for (float& value : drawn) value = std::normal_distribution<float>()(random);
  const auto bits = BitsOf<TypeParam>(drawn);
  const std::vector<int64_t> expected = this->Choose(bits, 10, 1000, SerialFor);
  EXPECT_EQ(this->Choose(bits, 10, int64_t{1} << 62, SerialFor), expected);
}

TEST(PaperTopK, ThirtySamplingsAreExactOnSmoothData) {
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
