// MomentumUpdate against its formula, one rounding after the other, in place and beside.

#include "custom_ops/momentum_update/momentum_update.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace momentum_update {
namespace {

template <typename T>
struct Arrays {
  std::vector<T> w, v, g;

  explicit Arrays(int64_t n) : w(n), v(n), g(n) {
    std::mt19937_64 random(n);
    std::normal_distribution<T> normal;
    for (std::vector<T>* array : {&w, &v, &g}) {
      for (T& value : *array) value = normal(random);
    }
  }
};

// `volatile` keeps each operation's rounding.
template <typename T>
void Expect(const Factors<T>& f, const Arrays<T>& before, const std::vector<T>& w, const std::vector<T>& v) {
  for (size_t i = 0; i < w.size(); ++i) {
    volatile T decayed = f.decay * before.w[i];
    volatile T direction = before.g[i] + decayed;
    volatile T growth = f.rate * direction;
    volatile T kept = f.momentum * before.v[i];
    volatile T velocity = kept + growth;
    volatile T ahead = f.momentum * velocity;
    volatile T looked = ahead + growth;
    volatile T move = f.nesterov ? looked : velocity;
    volatile T scaled = f.scale * move;
    EXPECT_EQ(w[i], before.w[i] - scaled) << i;
    EXPECT_EQ(v[i], velocity) << i;
  }
}

template <typename T>
class MomentumUpdateTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MomentumUpdateTest, Types);

TYPED_TEST(MomentumUpdateTest, FollowsItsFormulaToTheBit) {
  for (const bool nesterov : {false, true}) {
    const Factors<TypeParam> factors = {TypeParam(0.3), TypeParam(0.7), TypeParam(0.9), TypeParam(0.01), nesterov};
    for (const int64_t n : {0, 1, 2, 7, 8, 9, 31, 33, 1000}) {
      const Arrays<TypeParam> before(n);
      Arrays<TypeParam> after = before;
      MomentumUpdate(factors, after.g.data(), n, after.w.data(), after.v.data(), after.w.data(), after.v.data());
      Expect(factors, before, after.w, after.v);
      EXPECT_EQ(after.g, before.g);

      std::vector<TypeParam> w(n), v(n);
      MomentumUpdate(factors, before.g.data(), n, before.w.data(), before.v.data(), w.data(), v.data());
      EXPECT_EQ(w, after.w);
      EXPECT_EQ(v, after.v);
    }
  }
}

TYPED_TEST(MomentumUpdateTest, NanAndInfinityStayInTheirElement) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  Arrays<TypeParam> arrays(40);
  arrays.g[7] = nan;
  arrays.g[11] = std::numeric_limits<TypeParam>::infinity();
  MomentumUpdate<TypeParam>({1, 1, 0, 0, false}, arrays.g.data(), 40, arrays.w.data(), arrays.v.data(),
                            arrays.w.data(), arrays.v.data());
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(std::isnan(arrays.w[i]), i == 7) << i;
    EXPECT_EQ(std::isinf(arrays.w[i]), i == 11) << i;
  }
}

}  // namespace
}  // namespace momentum_update
