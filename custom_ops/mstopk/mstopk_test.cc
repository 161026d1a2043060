// The exact selection against a full sort, on every adversarial input, instruction set and
// schedule.

#include "custom_ops/mstopk/mstopk.h"

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "custom_ops/mstopk/candidates.h"
#include "custom_ops/mstopk/reference.h"
#include "custom_ops/mstopk/test_inputs.h"
#include "custom_ops/mstopk/test_runtime.h"
#include "gtest/gtest.h"

namespace mstopk {
namespace {

template <typename Bits, typename Index>
int ExpectTopK(const std::vector<Bits>& x, int64_t k, const Runtime& runtime,
               const std::string& name) {
  std::vector<Bits> values(k);
  std::vector<Index> indices(k, -1);
  const int reads = TopK(x.data(), x.size(), k, runtime, values.data(), indices.data());
  const std::vector<int64_t> expected = ReferenceTopK(x, k);
  const std::vector<int64_t> actual(indices.begin(), indices.end());
  EXPECT_EQ(actual, expected) << name << " n=" << x.size() << " k=" << k << " "
                              << runtime.kernels.name;
  for (int64_t i = 0; i < k; ++i) EXPECT_EQ(values[i], x[expected[i]]);
  EXPECT_LE(reads, 3) << name;
  return reads;
}

template <typename Bits>
std::vector<Bits> ToBits(const std::vector<float>& x) {
  std::vector<Bits> bits(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if constexpr (sizeof(Bits) == 4) {
      bits[i] = BitsFromFloat(x[i]);
    } else {
      bits[i] = ToBFloat16Bits(x[i]);
    }
  }
  return bits;
}

TEST(RankTest, FewAndManyElementsInSpansSomeOfThemEmpty) {
  std::mt19937_64 random(4);
  for (const int64_t n : {1, 2, 4095, 4096, 4097, 9000}) {
    std::vector<uint32_t> keys(n);
    for (uint32_t& key : keys) key = 1000 + random() % 3000;  // many ties
    const std::vector<Span<uint32_t>> spans = {
        {keys.data(), 0}, {keys.data(), n / 3}, {keys.data(), 0}, {keys.data() + n / 3, n - n / 3}};
    std::vector<uint32_t> sorted = keys;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (const int64_t k : {int64_t{1}, (n + 1) / 2, n}) {
      EXPECT_EQ(KthLargestKey(spans, k, {1000, 2500}, SerialFor), sorted[k - 1]) << n << " " << k;
    }
  }
}

TEST(TopKTest, MatchesAFullSortOnEveryInput) {
  std::mt19937_64 random(3);
  for (const TestInput& input : TestInputs()) {
    for (const int64_t n : {0, 1, 2, 63, 64, 65, 1000, 16384, 16385, 70000}) {
      const std::vector<float> x = input.make(n, random);
      std::set<int64_t> ks = {
          0, n, n / 1000, n / 100, n / 3, n / 2, std::min<int64_t>(1, n), std::max<int64_t>(0, n - 1)};
      for (const int64_t k : ks) {
        for (const ScanKernels* kernels : SupportedScans()) {
          ExpectTopK<uint32_t, int32_t>(ToBits<uint32_t>(x), k, {*kernels, SerialFor}, input.name);
          ExpectTopK<uint16_t, int64_t>(ToBits<uint16_t>(x), k, {*kernels, SerialFor}, input.name);
        }
      }
    }
  }
}

TEST(TopKTest, ManyBlocksOnThreadsOutOfOrder) {
  std::mt19937_64 random(4);
  const int64_t n = 5 * kBlockElements + 12345;
  const Runtime runtime = {BestScan(), BackwardsOnThreads};
  for (const TestInput& input : TestInputs()) {
    const std::vector<float> x = input.make(n, random);
    for (const int64_t k : {n / 1000, n / 100}) {
      ExpectTopK<uint32_t, int64_t>(ToBits<uint32_t>(x), k, runtime, input.name);
      ExpectTopK<uint16_t, int32_t>(ToBits<uint16_t>(x), k, runtime, input.name);
    }
  }
}

TEST(TopKTest, OneReadOnOrdinaryInputs) {
  std::mt19937_64 random(5);
  const std::set<std::string> ordinary = {
      "normal", "laplace", "clipped", "zeros", "constant", "sparse", "mixed_layer_scales",
      "one_nan"};
  for (const TestInput& input : TestInputs()) {
    if (ordinary.count(input.name) == 0) continue;
    const std::vector<uint32_t> x = ToBits<uint32_t>(input.make(1 << 20, random));
    for (const int64_t k : {1 << 10, 10486}) {
      const int reads = ExpectTopK<uint32_t, int32_t>(x, k, {BestScan(), SerialFor}, input.name);
      EXPECT_EQ(reads, 1) << input.name << " k=" << k;
    }
  }
}

TEST(TopKTest, OneReadOfManyTiesWithBlocksInAnyOrder) {
  std::mt19937_64 random(14);
  for (const TestInput& input : TestInputs()) {
    if (input.name != "clipped" && input.name != "constant") continue;
    const std::vector<uint32_t> x = ToBits<uint32_t>(input.make(1 << 22, random));
    const Runtime runtime = {BestScan(), BackwardsOnThreads};
    const int reads = ExpectTopK<uint32_t, int32_t>(x, x.size() / 100, runtime, input.name);
    EXPECT_EQ(reads, 1) << input.name;
  }
}

// Sixteen blocks that go on in step, chunk by chunk: alone each would keep its first k ties.
TEST(CandidatesTest, BlocksUnderWayAtOnceTogetherKeepFewTies) {
  constexpr int64_t kBlocks = 16, k = 40000;
  const std::vector<uint32_t> x(kBlocks * kBlockElements, BitsFromFloat(0.5f));
  AdmissionRule rule = AdmissionRule::AtLeast(KeyOf(x[0]));
  rule.certain = rule.floor + 1;
  rule.tie_quota = k;
  std::mutex mutex;
  std::condition_variable changed;
  int64_t arrived = 0;
  const auto all_arrive = [&] {
    std::unique_lock<std::mutex> lock(mutex);
    const int64_t round = arrived++ / kBlocks;
    changed.notify_all();
    changed.wait(lock, [&] { return arrived / kBlocks > round; });
  };
  const auto scan = [&](int64_t begin, int64_t count, uint32_t floor, uint32_t first, uint32_t* bits,
                        uint32_t* offsets) {
    all_arrive();
    return CollectKernel<uint32_t>(BestScan())(&x[begin], count, floor, first, bits, offsets);
  };
  const auto all_at_once = [](int64_t count, const std::function<void(int64_t)>& body) {
    std::vector<std::thread> threads;
    for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  };
  const auto candidates = CollectCandidates<uint32_t>(x.size(), rule, false, scan, all_at_once);
  EXPECT_TRUE(candidates.complete);
  EXPECT_GE(candidates.Size(), k);
  EXPECT_LT(candidates.Size(), 4 * k + kBlocks * 8192);  // k (1 + ln 16), and a chunk for each block
}

TEST(TopKTest, AMisleadingSampleCostsReadsNotCorrectness) {
  std::mt19937_64 random(6);
  const int64_t n = 1 << 19;
  for (const int64_t k : {n / 1000, n / 100}) {
    const std::vector<bool> sampled = SampledPositions(n, k);
    for (const bool seen_is_large : {true, false}) {
      std::vector<uint32_t> x(n);
      for (int64_t i = 0; i < n; ++i) {
        const bool large = sampled[i] == seen_is_large;
        x[i] = BitsFromFloat(std::normal_distribution<float>()(random) + (large ? 1000.0f : 0.0f));
      }
      const int reads = ExpectTopK<uint32_t, int32_t>(x, k, {BestScan(), SerialFor}, "misled");
      // Too few are admitted where all that was seen is large, else far too many.
      EXPECT_EQ(reads, 3) << "seen_is_large " << seen_is_large << " k=" << k;
    }
  }
}

TEST(TopKTest, TheHistogramPathMatchesToo) {
  std::mt19937_64 random(7);
  const Runtime runtime = {BestScan(), BackwardsOnThreads};
  for (const TestInput& input : TestInputs()) {
    for (const int64_t n : {1, 1000, 50000}) {
      const std::vector<float> x = input.make(n, random);
      const int64_t k = (n + 99) / 100;
      const std::vector<uint32_t> x32 = ToBits<uint32_t>(x);
      const std::vector<uint16_t> x16 = ToBits<uint16_t>(x);
      std::vector<uint32_t> values32(k);
      std::vector<uint16_t> values16(k);
      std::vector<int64_t> indices(k);
      EXPECT_EQ(TopKByHistogram(x32.data(), n, k, runtime, values32.data(), indices.data()), 2);
      EXPECT_EQ(indices, ReferenceTopK(x32, k)) << input.name;
      EXPECT_EQ(TopKByHistogram(x16.data(), n, k, runtime, values16.data(), indices.data()), 2);
      EXPECT_EQ(indices, ReferenceTopK(x16, k)) << input.name;
    }
  }
}

TEST(SortByMagnitudeTest, FallingMagnitudeThenRisingIndex) {
  std::vector<uint32_t> values = {BitsFromFloat(1), BitsFromFloat(-3), BitsFromFloat(-1),
                                  BitsFromFloat(3)};
  std::vector<int32_t> indices = {2, 4, 6, 8};
  SortByMagnitude<uint32_t, int32_t>(4, values.data(), indices.data());
  EXPECT_EQ(indices, (std::vector<int32_t>{4, 8, 2, 6}));
  EXPECT_EQ(values[0], BitsFromFloat(-3));
}

}  // namespace
}  // namespace mstopk
