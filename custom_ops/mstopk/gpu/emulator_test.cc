// The GPU kernels on the emulator, against a full sort: see emulator.h for what that can show.

#define MSTOPK_EMULATE_GPU
#include "custom_ops/mstopk/gpu/emulator.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/mstopk/gpu/emit.h"
#include "custom_ops/mstopk/gpu/misleading_inputs.h"
#include "custom_ops/mstopk/gpu/on_chip.h"
#include "custom_ops/mstopk/gpu/pages.h"
#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/reference.h"
#include "custom_ops/mstopk/test_inputs.h"
#include "gtest/gtest.h"

namespace mstopk {
namespace gpu {
namespace {

constexpr uint32_t kBlocks = 3;

// A workspace filled with garbage, as on a GPU.
class Workspace {
 public:
  Workspace(uint32_t n, uint32_t k, bool on_chip) {
    size_t bytes = 0;
    MakePlan(n, k, kBlocks, kBlockWarps, on_chip, nullptr, &bytes);
    memory_.assign(bytes / sizeof(uint64_t) + 1, 0xabababababababab);
    char* const memory = reinterpret_cast<char*>(memory_.data());
    plan_ = MakePlan(n, k, kBlocks, kBlockWarps, on_chip, memory, &bytes);
    shared_words_ = kSharedWords + kBlockWarps * (on_chip ? plan_.chunk : Pages<uint32_t>::kWordsPerWarp);
  }
  const Plan& plan() const { return plan_; }
  uint32_t shared_words() const { return shared_words_; }
  // Passes over the input or the candidates that counted anything.
  int Rounds() const {
    int rounds = 0;
    for (const Round& round : plan_.state->rounds) {
      rounds += round.ties != 0 ||
                std::any_of(round.histogram, round.histogram + kBins, [](uint32_t c) { return c; });
    }
    return rounds;
  }

 private:
  std::vector<uint64_t> memory_;
  Plan plan_;
  uint32_t shared_words_;
};

template <template <typename> typename Store, typename Bits>
void ExpectSelectsFrom(const std::vector<Bits>& x, uint32_t k, uint64_t seed,
                       const std::string& name) {
  constexpr bool kOnChip = std::is_same_v<Store<Bits>, OnChip<Bits>>;
  const VectorSource<Bits> source = {x.data()};
  Workspace workspace(x.size(), k, kOnChip);
  std::vector<Bits> values(k);
  std::vector<int64_t> indices(k, -1);
  Emulator::Launch(kBlocks, workspace.shared_words(), seed, [&] {
    SelectKernel(workspace.plan(), Store<Bits>{workspace.plan()}, source, values.data(),
                 indices.data());
  });
  const std::vector<int64_t> expected = ReferenceTopK(x, k);
  ASSERT_EQ(indices, expected) << name << (kOnChip ? ", on the chip," : "") << " n=" << x.size()
                               << " k=" << k << " seed " << seed;
  for (uint32_t i = 0; i < k; ++i) ASSERT_EQ(values[i], x[expected[i]]);
  EXPECT_LE(workspace.Rounds(), kOnChip ? 3 : 4);
}

template <typename Bits>
void ExpectSelects(const std::vector<Bits>& x, uint32_t k, uint64_t seed, const std::string& name) {
  ExpectSelectsFrom<Pages>(x, k, seed, name);
  ExpectSelectsFrom<OnChip>(x, k, seed, name);
}

TEST(GpuSelectTest, MatchesAFullSort) {
  std::mt19937_64 random(20);
  for (const TestInput& input : TestInputs()) {
    for (const uint32_t n : {1u, 300u, 20001u}) {
      const std::vector<float> x = input.make(n, random);
      std::vector<uint32_t> x32(n);
      std::vector<uint16_t> x16(n);
      for (uint32_t i = 0; i < n; ++i) {
        x32[i] = BitsFromFloat(x[i]);
        x16[i] = ToBFloat16Bits(x[i]);
      }
      for (const uint32_t k : {n / 1000 + 1, n / 50 + 1}) {
        ExpectSelects<uint32_t>(x32, k, random(), input.name);
        ExpectSelects<uint16_t>(x16, k, random(), input.name);
      }
      if (n > 1000) continue;
      ExpectSelects<uint32_t>(x32, n, random(), input.name);
      ExpectSelects<uint32_t>(x32, n / 10 + 1, random(), input.name);
    }
  }
}

TEST(GpuSelectTest, SameForEverySchedule) {
  std::mt19937_64 random(21);
  std::vector<uint32_t> x(30000);
  for (uint32_t& bits : x) bits = BitsFromFloat(static_cast<float>(random() % 1000));
  for (uint64_t seed = 0; seed < 8; ++seed) ExpectSelects<uint32_t>(x, 500, seed, "schedule");
}

uint32_t Samples(uint32_t n, uint32_t k) { return Workspace(n, k, /*on_chip=*/false).plan().samples; }

// Of a real GPU's plan, whose blocks are larger than the emulator's.
TEST(GpuPlanTest, TheSampleIsWholePiecesWithinTheInput) {
  for (uint32_t n = 1 << 14; n < 6000000; n += 4099) {
    size_t bytes = 0;
    const Plan plan = MakePlan(n, n / 100, 4, 32, /*on_chip=*/false, nullptr, &bytes);
    ASSERT_EQ(plan.samples % kSamplePiece, 0) << n;
    const uint32_t pieces = plan.samples / kSamplePiece;
    uint32_t end = 0;
    for (uint32_t p = 0; p < pieces; ++p) {
      ASSERT_LE(end, SampleBegin(p, pieces, n)) << n;
      end = SampleBegin(p, pieces, n) + kSamplePiece;
    }
    ASSERT_LE(end, n);
  }
}

TEST(GpuSelectTest, AMisleadingSampleCostsPassesNotCorrectness) {
  std::mt19937_64 random(22);
  const uint32_t n = 40000;
  const uint32_t k = 400;
  for (const MisleadingInput& input : MisleadingInputs(n, Samples(n, k), random)) {
    ExpectSelects<uint32_t>(input.x, k, 1, input.name);
    ExpectSelects<uint32_t>(input.x, 5 * k, 2, input.name + ", more than the sample");
    ExpectSelects<uint32_t>(input.x, n - 1, 3, input.name + ", nearly all");
  }
}

template <template <typename> typename Store, typename Format>
void ExpectErrorFeedbackFrom(const std::vector<typename Format::Bits>& grad,
                             const std::vector<uint32_t>& residual, uint32_t k,
                             const std::string& name) {
  const uint32_t n = grad.size();
  std::vector<uint32_t> acc(n);
  bool finite = true;
  for (uint32_t i = 0; i < n; ++i) {
    const float g = Format::ToFloat(grad[i]);
    finite &= std::isfinite(g);
    acc[i] = BitsFromFloat(FloatFromBits(residual[i]) + g);
  }
  std::vector<uint32_t> kept(n, 0xabababab);
  const SumSource<Format> source = {grad.data(), residual.data(), kept.data()};
  Workspace workspace(n, k, std::is_same_v<Store<uint32_t>, OnChip<uint32_t>>);
  std::vector<uint32_t> values(k);
  std::vector<int64_t> indices(k, -1);
  bool all_finite = !finite;
  Emulator::Launch(kBlocks, workspace.shared_words(), n + k, [&] {
    ErrorFeedbackKernel(workspace.plan(), Store<uint32_t>{workspace.plan()}, source, values.data(),
                        indices.data(), &all_finite);
  });
  ASSERT_EQ(all_finite, finite) << name;
  ASSERT_EQ(indices, ReferenceTopK(acc, k)) << name << " n=" << n << " k=" << k;
  for (uint32_t i = 0; i < k; ++i) {
    ASSERT_EQ(values[i], acc[indices[i]]);
    acc[indices[i]] = 0;
  }
  ASSERT_EQ(kept, finite ? acc : residual) << name << " n=" << n << " k=" << k;
}

template <typename Format>
void ExpectErrorFeedback(const std::vector<typename Format::Bits>& grad,
                         const std::vector<uint32_t>& residual, uint32_t k, const std::string& name) {
  ExpectErrorFeedbackFrom<Pages, Format>(grad, residual, k, name);
  ExpectErrorFeedbackFrom<OnChip, Format>(grad, residual, k, name + ", on the chip");
}

TEST(GpuErrorFeedbackTest, WinnersAndResidualAddUpToTheSum) {
  std::mt19937_64 random(23);
  for (const TestInput& input : TestInputs()) {
    for (const uint32_t n : {1u, 777u, 20001u}) {
      const std::vector<float> g = input.make(n, random);
      std::vector<uint32_t> g32(n), residual(n);
      std::vector<uint16_t> f16(n), bf16(n);
      for (uint32_t i = 0; i < n; ++i) {
        g32[i] = BitsFromFloat(g[i]);
        f16[i] = ToFloat16Bits(g[i]);
        bf16[i] = ToBFloat16Bits(g[i]);
        residual[i] = BitsFromFloat(std::normal_distribution<float>()(random) * 1e-3f);
      }
      for (const uint32_t k : {0u, n / 100 + 1}) {
        ExpectErrorFeedback<Float32>(g32, residual, k, input.name);
        ExpectErrorFeedback<Float16>(f16, residual, k, input.name);
        ExpectErrorFeedback<BFloat16>(bf16, residual, k, input.name);
        // With nothing kept sums tie as gradients do.
        ExpectErrorFeedback<Float32>(g32, std::vector<uint32_t>(n), k, input.name + ", alone");
      }
    }
  }
}

TEST(GpuErrorFeedbackTest, AMisleadingSampleCostsPassesNotCorrectness) {
  std::mt19937_64 random(24);
  const uint32_t n = 40000;
  const uint32_t k = 400;
  for (MisleadingInput& input : MisleadingInputs(n, Samples(n, k), random)) {
    ExpectErrorFeedback<Float32>(input.x, std::vector<uint32_t>(n), k, input.name);
    input.x[n / 2] = BitsFromFloat(std::numeric_limits<float>::infinity());
    ExpectErrorFeedback<Float32>(input.x, std::vector<uint32_t>(n), k, input.name + ", not finite");
  }
}

}  // namespace
}  // namespace gpu
}  // namespace mstopk
