// Error feedback: nothing is lost, and a non-finite gradient changes nothing.

#include "custom_ops/mstopk/error_feedback.h"

#include <random>
#include <type_traits>
#include <vector>

#include "custom_ops/mstopk/reference.h"
#include "custom_ops/mstopk/test_inputs.h"
#include "custom_ops/mstopk/test_runtime.h"
#include "gtest/gtest.h"

namespace mstopk {
namespace {

template <typename Format>
void ExpectErrorFeedback(const std::vector<typename Format::Bits>& grad,
                         const std::vector<uint32_t>& residual, int64_t k, Into into,
                         const Runtime& runtime, const std::string& name) {
  const int64_t n = grad.size();
  std::vector<uint32_t> acc(n);
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float g = Format::ToFloat(grad[i]);
    finite &= std::isfinite(g);
    acc[i] = BitsFromFloat(FloatFromBits(residual[i]) + g);
  }
  std::vector<uint32_t> updated = residual;
  const uint32_t* const memory = into == Into::kResidual ? updated.data() : residual.data();
  const typename Format::Bits* gradient = grad.data();
  if constexpr (std::is_same_v<Format, Float32>) {
    if (into == Into::kGrad) updated = grad, gradient = updated.data();
  }
  std::vector<uint32_t> values(k);
  std::vector<int64_t> indices(k, -1);
  ASSERT_EQ((ErrorFeedbackTopK<Format, int64_t>(gradient, memory, n, k, runtime, updated.data(),
                                                values.data(), indices.data())),
            finite)
      << name;
  EXPECT_EQ(indices, ReferenceTopK(acc, k)) << name << " n=" << n << " k=" << k;
  if (!finite) {
    EXPECT_EQ(updated, residual) << name;
    return;
  }
  for (int64_t i = 0; i < k; ++i) {
    EXPECT_EQ(values[i], acc[indices[i]]);
    EXPECT_EQ(updated[indices[i]], 0u);
    acc[indices[i]] = 0;
  }
  EXPECT_EQ(updated, acc) << name;
}

TEST(ErrorFeedbackTest, WinnersAndResidualAddUpToTheSum) {
  std::mt19937_64 random(8);
  for (const TestInput& input : TestInputs()) {
    for (const int64_t n : {0, 1, 65, 1000, 20000}) {
      const std::vector<float> g = input.make(n, random);
      std::vector<uint32_t> g32(n), residual(n);
      std::vector<uint16_t> f16(n), bf16(n);
      for (int64_t i = 0; i < n; ++i) {
        g32[i] = BitsFromFloat(g[i]);
        f16[i] = ToFloat16Bits(g[i]);
        bf16[i] = ToBFloat16Bits(g[i]);
        residual[i] = BitsFromFloat(std::normal_distribution<float>()(random) * 1e-3f);
      }
      for (const int64_t k : {int64_t{0}, (n + 99) / 100, n / 3, n}) {
        for (const ScanKernels* kernels : SupportedScans()) {
          const Runtime runtime = {*kernels, SerialFor};
          for (const Into into : IntosOf<Float32>()) {
            ExpectErrorFeedback<Float32>(g32, residual, k, into, runtime, input.name);
          }
          for (const Into into : IntosOf<Float16>()) {
            ExpectErrorFeedback<Float16>(f16, residual, k, into, runtime, input.name);
            ExpectErrorFeedback<BFloat16>(bf16, residual, k, into, runtime, input.name);
          }
        }
      }
    }
  }
}

TEST(ErrorFeedbackTest, ManyBlocksOnThreadsOutOfOrder) {
  std::mt19937_64 random(9);
  const int64_t n = 3 * kBlockElements + 777;
  const std::vector<uint32_t> residual(n, BitsFromFloat(0.5f));
  for (const TestInput& input : TestInputs()) {
    const std::vector<float> g = input.make(n, random);
    std::vector<uint32_t> g32(n);
    for (int64_t i = 0; i < n; ++i) g32[i] = BitsFromFloat(g[i]);
    for (const Into into : IntosOf<Float32>()) {
      ExpectErrorFeedback<Float32>(g32, residual, n / 100, into,
                                   {BestScan(), BackwardsOnThreads}, input.name);
    }
  }
}

TEST(ErrorFeedbackTest, AMisleadingSampleLosesNothing) {
  std::mt19937_64 random(12);
  const int64_t n = 1 << 18;
  const std::vector<uint32_t> residual(n, BitsFromFloat(-0.25f));
  for (const int64_t k : {n / 1000, n / 100, n / 4}) {
    const std::vector<bool> sampled = SampledPositions(n, k);
    for (const int64_t percent_of_unseen : {0, 2, 100}) {
      for (const bool seen_is_large : {true, false}) {
        std::vector<uint32_t> grad(n);
        for (int64_t i = 0; i < n; ++i) {
          const bool unseen_is_large = static_cast<int64_t>(random() % 100) < percent_of_unseen;
          const bool large = sampled[i] ? seen_is_large : unseen_is_large;
          grad[i] =
              BitsFromFloat(std::normal_distribution<float>()(random) + (large ? 1000.0f : 0.0f));
        }
        for (const Into into : IntosOf<Float32>()) {
          ExpectErrorFeedback<Float32>(grad, residual, k, into, {BestScan(), SerialFor},
                                       "misled");
        }
      }
    }
  }
}

}  // namespace
}  // namespace mstopk
