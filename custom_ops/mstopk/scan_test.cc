// Every instruction set against the definition, at awkward lengths and with guard slots.

#include "custom_ops/mstopk/scan.h"

#include <cstring>
#include <random>
#include <vector>

#include "custom_ops/mstopk/test_inputs.h"
#include "custom_ops/mstopk/test_runtime.h"
#include "gtest/gtest.h"

namespace mstopk {
namespace {

constexpr uint32_t kGuard = 0xabcdu;

template <typename Bits>
void ExpectCollectsByDefinition(const ScanKernels& kernels, const std::vector<Bits>& x,
                                uint32_t floor) {
  std::vector<Bits> bits(x.size() + kScanSlack + 1, kGuard);
  std::vector<uint32_t> offsets(bits.size(), kGuard);
  const int64_t count =
      CollectKernel<Bits>(kernels)(x.data(), x.size(), floor, 7, bits.data(), offsets.data());
  std::vector<uint32_t> expected;
  for (size_t i = 0; i < x.size(); ++i) {
    if (KeyOf(x[i]) >= floor) expected.push_back(i);
  }
  ASSERT_EQ(count, static_cast<int64_t>(expected.size())) << kernels.name << " floor " << floor;
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(offsets[i], 7 + expected[i]);
    ASSERT_EQ(bits[i], x[expected[i]]);
  }
  EXPECT_EQ(bits.back(), kGuard);
  EXPECT_EQ(offsets.back(), kGuard);
}

TEST(CollectTest, EveryInstructionSetAgreesWithTheDefinition) {
  std::mt19937_64 random(1);
  for (const TestInput& input : TestInputs()) {
    for (const int64_t n : {0, 1, 63, 64, 65, 127, 128, 1000}) {
      const std::vector<float> x = input.make(n, random);
      std::vector<uint32_t> x32(n);
      std::vector<uint16_t> x16(n);
      for (int64_t i = 0; i < n; ++i) {
        x32[i] = BitsFromFloat(x[i]);
        x16[i] = ToBFloat16Bits(x[i]);
      }
      for (const ScanKernels* kernels : SupportedScans()) {
        for (const uint32_t floor :
             {0u, 1u, 0x3f800000u, 0x40000000u, 0x7f800000u, 0x7fffffffu, 0x80000000u}) {
          ExpectCollectsByDefinition<uint32_t>(*kernels, x32, floor);
        }
        for (const uint32_t floor : {0u, 1u, 0x3f80u, 0x4000u, 0x7f80u, 0x7fffu, 0x8000u}) {
          ExpectCollectsByDefinition<uint16_t>(*kernels, x16, floor);
        }
      }
    }
  }
}

template <typename Format>
void ExpectAccumulatesByDefinition(const ScanKernels& kernels,
                                   const std::vector<typename Format::Bits>& grad,
                                   const std::vector<uint32_t>& residual) {
  const int64_t n = grad.size();
  const uint32_t floor = BitsFromFloat(1.0f);
  const uint32_t zero_from = BitsFromFloat(2.0f);
  for (const Into into : IntosOf<Format>()) {
    std::vector<uint32_t> storage(n + 16);
    const int64_t aligned = (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64 / 4;
    uint32_t* const out = storage.data() + aligned;  // aligned: the path that streams
    const void* const old = into == Into::kGrad ? static_cast<const void*>(grad.data())
                                                : static_cast<const void*>(residual.data());
    if (into != Into::kApart && n > 0) std::memcpy(out, old, n * sizeof(uint32_t));
    const auto* const from = into == Into::kGrad
                                 ? reinterpret_cast<const typename Format::Bits*>(out)
                                 : grad.data();
    std::vector<uint32_t> bits(n + kScanSlack), offsets(n + kScanSlack);
    bool non_finite = false;
    const int64_t count = AccumulateKernel<Format>(kernels)(
        from, into == Into::kResidual ? out : residual.data(), n, floor, zero_from, 0, out, bits.data(),
        offsets.data(), &non_finite);
    int64_t expected_count = 0;
    bool expected_non_finite = false;
    for (int64_t i = 0; i < n; ++i) {
      const float g = Format::ToFloat(grad[i]);
      expected_non_finite |= !std::isfinite(g);
      const float sum = FloatFromBits(residual[i]) + g;
      const uint32_t key = KeyOf(BitsFromFloat(sum));
      ASSERT_EQ(out[i], key >= zero_from ? 0 : BitsFromFloat(sum)) << kernels.name << " at " << i;
      if (key < floor) continue;
      ASSERT_LT(expected_count, count);
      ASSERT_EQ(offsets[expected_count], i);
      if (std::isnan(sum)) {
        ASSERT_TRUE(std::isnan(FloatFromBits(bits[expected_count])));  // the hardware chooses which
      } else {
        ASSERT_EQ(bits[expected_count], BitsFromFloat(sum));
      }
      ++expected_count;
    }
    ASSERT_EQ(count, expected_count);
    ASSERT_EQ(non_finite, expected_non_finite) << kernels.name;
  }
}

TEST(AccumulateTest, EveryInstructionSetAgreesWithTheDefinition) {
  std::mt19937_64 random(2);
  for (const TestInput& input : TestInputs()) {
    for (const int64_t n : {0, 1, 63, 64, 65, 200}) {
      const std::vector<float> g = input.make(n, random);
      std::vector<uint32_t> g32(n), residual(n);
      std::vector<uint16_t> f16(n), bf16(n);
      for (int64_t i = 0; i < n; ++i) {
        g32[i] = BitsFromFloat(g[i]);
        f16[i] = ToFloat16Bits(g[i]);
        bf16[i] = ToBFloat16Bits(g[i]);
        residual[i] = BitsFromFloat(std::normal_distribution<float>()(random));
      }
      for (const ScanKernels* kernels : SupportedScans()) {
        ExpectAccumulatesByDefinition<Float32>(*kernels, g32, residual);
        ExpectAccumulatesByDefinition<Float16>(*kernels, f16, residual);
        ExpectAccumulatesByDefinition<BFloat16>(*kernels, bf16, residual);
      }
    }
  }
}

TEST(FormatTest, EveryFloat16NumberConvertsExactly) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float value = Float16::ToFloat(static_cast<uint16_t>(bits));
    const int exponent = (bits >> 10) & 0x1f;
    const int mantissa = bits & 0x3ff;
    const float sign = bits & 0x8000u ? -1.0f : 1.0f;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(value, sign * static_cast<float>(magnitude)) << bits;
    }
  }
}

}  // namespace
}  // namespace mstopk
