// Inputs on which top-k implementations go wrong, for tests.

#ifndef CUSTOM_OPS_MSTOPK_TEST_INPUTS_H_
#define CUSTOM_OPS_MSTOPK_TEST_INPUTS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/mstopk/key.h"

namespace mstopk {

struct TestInput {
  std::string name;
  std::function<std::vector<float>(int64_t n, std::mt19937_64& random)> make;
};

// A vector whose elements come one by one from draw(i).
template <typename Draw>
std::vector<float> Generate(int64_t n, Draw draw) {
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(draw(i));
  return x;
}

inline std::vector<TestInput> TestInputs() {
  using Random = std::mt19937_64;
  static const auto normal = [](Random& r) { return std::normal_distribution<double>()(r); };
  static const auto one_in = [](Random& r, int64_t m) { return r() % m == 0; };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"normal",
       [](int64_t n, Random& r) { return Generate(n, [&](int64_t) { return normal(r); }); }},
      {"laplace",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) {
           const double u = std::exponential_distribution<double>()(r);
           return one_in(r, 2) ? u : -u;
         });
       }},
      {"lognormal",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return std::exp(8 * normal(r)); });
       }},
      {"mixed_layer_scales",
       [](int64_t n, Random& r) {
         return Generate(n,
                         [&](int64_t i) { return normal(r) * (i >= n - n / 200 ? 1000.0 : 1.0); });
       }},
      {"clipped",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return std::clamp(normal(r), -0.5, 0.5); });
       }},
      {"zeros", [](int64_t n, Random&) { return std::vector<float>(n, 0.0f); }},
      {"signed_zeros",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return one_in(r, 2) ? 0.0 : -0.0; });
       }},
      {"constant", [](int64_t n, Random&) { return std::vector<float>(n, -0.125f); }},
      {"sparse",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return one_in(r, 5000) ? normal(r) : 0.0; });
       }},
      {"one_nan",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t i) { return i == n / 3 ? kNan : normal(r); });
       }},
      {"many_non_finite",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) {
           return one_in(r, 20) ? kNan : one_in(r, 20) ? -kInf : one_in(r, 2) ? kInf : normal(r);
         });
       }},
      {"all_nan", [](int64_t n, Random&) { return std::vector<float>(n, float(kNan)); }},
      {"denormal",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return normal(r) * 1e-41; });
       }},
      {"ascending", [](int64_t n, Random&) { return Generate(n, [](int64_t i) { return i; }); }},
      {"descending",
       [](int64_t n, Random&) { return Generate(n, [n](int64_t i) { return n - i; }); }},
      {"periodic",
       [](int64_t n, Random&) {
         return Generate(n, [](int64_t i) { return i % 512 == 0 ? 1.0 + i % 7 : 1e-3; });
       }},
      {"same_leading_bits",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return FloatFromBits(0x3f800000u + r() % 256); });
       }},
      {"few_values",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t) { return static_cast<double>(r() % 5) - 2.0; });
       }},
      {"outlier",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t i) { return i == n / 2 ? 1e30 : normal(r); });
       }},
      {"all_large_in_one_run",
       [](int64_t n, Random& r) {
         return Generate(n, [&](int64_t i) {
           return normal(r) + (i > n / 2 && i < n / 2 + n / 50 ? 100.0 : 0.0);
         });
       }},
  };
}

// Rounds toward zero to a 16-bit format's bits; exactness does not matter to the tests.
inline uint16_t ToBFloat16Bits(float value) {
  const uint32_t bits = BitsFromFloat(value);
  return static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : bits >> 16);
}

inline uint16_t ToFloat16Bits(float value) {
  const uint32_t bits = BitsFromFloat(value);
  const uint16_t sign = (bits >> 16) & 0x8000u;
  if (value != value) return sign | 0x7e00u;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65536.0f) return sign | 0x7c00u;
  if (magnitude < 6.103515625e-05f) return sign | static_cast<uint16_t>(magnitude * 16777216.0f);
  return sign | static_cast<uint16_t>((((bits >> 23) & 0xffu) - 112) << 10) |
         ((bits >> 13) & 0x3ffu);
}

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_TEST_INPUTS_H_
