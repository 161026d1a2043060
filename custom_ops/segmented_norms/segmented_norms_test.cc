// SegmentedNorms against long double sums, for every instruction set and awkward sizes.

#include "custom_ops/segmented_norms/segmented_norms.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace segmented_norms {
namespace {

void SerialFor(int64_t count, const std::function<void(int64_t)>& body) {
  for (int64_t i = 0; i < count; ++i) body(i);
}

// Three threads; the last block first.
void BackwardsOnThreads(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{count - 1};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int64_t i = next--; i >= 0; i = next--) body(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
std::vector<SumBlockFn<T>> SupportedKernels() {
  std::vector<SumBlockFn<T>> kernels = {SumBlockBaseline<T>};
  if (SumBlockAvx2<T>() != nullptr) kernels.push_back(SumBlockAvx2<T>());
  if (SumBlockAvx512<T>() != nullptr) kernels.push_back(SumBlockAvx512<T>());
  return kernels;
}

template <typename T>
struct Layers {
  std::vector<std::vector<T>> w, x;
  std::vector<Segment<T>> segments;

  void Add(std::vector<T> weights, std::vector<T> directions, T c) {
    w.push_back(std::move(weights));
    x.push_back(std::move(directions));
    segments.push_back({w.back().data(), x.back().data(), static_cast<int64_t>(w.back().size()), c});
  }
};

const std::vector<int64_t> kSizes = {0,
                                     1,
                                     2,
                                     kLanes - 1,
                                     kLanes,
                                     kLanes + 1,
                                     1000,
                                     0,
                                     kBlockElements - 1,
                                     kBlockElements,
                                     kBlockElements + 1,
                                     3 * kBlockElements + 777};

template <typename T>
Layers<T> RandomLayers() {
  std::mt19937_64 random(1);
  std::normal_distribution<T> normal;
  Layers<T> layers;
  for (const int64_t n : kSizes) {
    std::vector<T> w(n), x(n);
    for (T& value : w) value = normal(random);
    for (T& value : x) value = normal(random);
    layers.Add(std::move(w), std::move(x), n % 2 ? T(0.1) : T(0));
  }
  return layers;
}

template <typename T>
std::vector<double> Run(const Layers<T>& layers, SumBlockFn<T> kernel, const ParallelFor& pool) {
  std::vector<double> sums(2 * layers.segments.size(), -1);
  SegmentedNorms(layers.segments, kernel, pool, sums.data());
  return sums;
}

template <typename T>
class SegmentedNormsTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SegmentedNormsTest, Types);

TYPED_TEST(SegmentedNormsTest, AgreesWithLongDouble) {
  const Layers<TypeParam> layers = RandomLayers<TypeParam>();
  const std::vector<double> sums = Run(layers, BestSumBlock<TypeParam>(), SerialFor);
  for (size_t s = 0; s < layers.segments.size(); ++s) {
    const Segment<TypeParam>& segment = layers.segments[s];
    long double w = 0, x = 0;
    for (int64_t i = 0; i < segment.size; ++i) {
      const TypeParam xi = segment.x[i] + segment.c * segment.w[i];
      w += static_cast<long double>(segment.w[i]) * segment.w[i];
      x += static_cast<long double>(xi) * xi;
    }
    EXPECT_NEAR(sums[2 * s], w, 1e-13 * w) << "segment " << s;
    EXPECT_NEAR(sums[2 * s + 1], x, 1e-13 * x) << "segment " << s;
  }
}

TYPED_TEST(SegmentedNormsTest, SameBitsOnEveryInstructionSetAndForEveryOrder) {
  const Layers<TypeParam> layers = RandomLayers<TypeParam>();
  const std::vector<double> expected = Run(layers, SumBlockBaseline<TypeParam>, SerialFor);
  for (const SumBlockFn<TypeParam> kernel : SupportedKernels<TypeParam>()) {
    for (const ParallelFor& pool : {ParallelFor(SerialFor), ParallelFor(BackwardsOnThreads)}) {
      const std::vector<double> sums = Run(layers, kernel, pool);
      EXPECT_EQ(0, std::memcmp(sums.data(), expected.data(), sums.size() * sizeof(double)));
    }
  }
}

TYPED_TEST(SegmentedNormsTest, IntegersAreExact) {
  for (const SumBlockFn<TypeParam> kernel : SupportedKernels<TypeParam>()) {
    Layers<TypeParam> layers;
    const int64_t n = 2 * kBlockElements + 5;
    std::vector<TypeParam> w(n), x(n);
    double w2 = 0, x2 = 0;
    for (int64_t i = 0; i < n; ++i) {
      w[i] = static_cast<TypeParam>(i % 1000);
      x[i] = static_cast<TypeParam>(-(i % 7));
      w2 += static_cast<double>(w[i]) * w[i];
      const double xi = x[i] + 2 * w[i];
      x2 += xi * xi;
    }
    layers.Add(std::move(w), std::move(x), 2);
    EXPECT_EQ(Run(layers, kernel, SerialFor), (std::vector<double>{w2, x2}));
  }
}

TYPED_TEST(SegmentedNormsTest, LongSumsKeepTheirPrecision) {
  // 2^22 times 0.1²: a plain float sum is off in the third digit.
  Layers<TypeParam> layers;
  const int64_t n = int64_t{1} << 22;
  const TypeParam tenth = TypeParam(0.1);
  layers.Add(std::vector<TypeParam>(n, tenth), std::vector<TypeParam>(n, tenth), 0);
  const double expected = static_cast<double>(tenth) * tenth * n;
  EXPECT_NEAR(Run(layers, BestSumBlock<TypeParam>(), SerialFor)[0], expected, 1e-12 * expected);
  float plain = 0;
  for (int64_t i = 0; i < n; ++i) plain += 0.1f * 0.1f;
  EXPECT_GT(std::abs(plain - expected), 1e-4 * expected);
}

TYPED_TEST(SegmentedNormsTest, NanInfinityAndHugeNumbers) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  const TypeParam infinity = std::numeric_limits<TypeParam>::infinity();
  for (const SumBlockFn<TypeParam> kernel : SupportedKernels<TypeParam>()) {
    Layers<TypeParam> layers;
    layers.Add({1, nan, 2}, {1, 1, 1}, 0);
    layers.Add({1, 1}, {infinity, 1}, 0);
    layers.Add({TypeParam(1e30f)}, {TypeParam(-3e38f)}, 0);
    const std::vector<double> sums = Run(layers, kernel, SerialFor);
    EXPECT_TRUE(std::isnan(sums[0]));
    EXPECT_EQ(sums[2], 2);
    EXPECT_TRUE(std::isinf(sums[3]));
    EXPECT_NEAR(sums[4], 1e60, 1e54);
    EXPECT_NEAR(sums[5], 9e76, 1e71);
  }
}

TEST(SegmentedNormsEdgeTest, NoSegments) {
  SegmentedNorms<float>({}, BestSumBlock<float>(), SerialFor, nullptr);
}

}  // namespace
}  // namespace segmented_norms
