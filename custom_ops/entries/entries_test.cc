// Add, SumBlock and Replace against plain loops.

#include "custom_ops/entries/entries.h"

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace entries {
namespace {

TEST(EntriesTest, AddIsAPlainLoop) {
  std::mt19937 random(1);
  for (const int64_t n : {1, 2, 1000}) {
    for (const int64_t count : {0, 1, 23, 24, 25, 5000}) {
      std::vector<float> values(count), out(n, 0.5f), expected(n, 0.5f);
      std::vector<int32_t> indices(count);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = std::normal_distribution<float>()(random);
        indices[i] = static_cast<int32_t>(random() % n);
        expected[indices[i]] += values[i];
      }
      bool finite = true;
      EXPECT_EQ(Add(values.data(), indices.data(), count, n, out.data(), &finite), kAllInside);
      EXPECT_EQ(out, expected);
      EXPECT_TRUE(finite);
    }
  }
}

TEST(EntriesTest, BlocksMakeWhatAddMakes) {
  std::mt19937 random(2);
  for (const int64_t n : {1, 2, 1000}) {
    for (const int64_t count : {0, 1, 100}) {
      for (const int64_t block : {int64_t{1}, int64_t{7}, n}) {
        const int64_t rows = 3;
        std::vector<float> values(rows * count), out(n, 9.0f), expected(n, 0.0f);
        std::vector<int32_t> indices(rows * count);
        for (float& value : values) value = std::normal_distribution<float>()(random);
        for (int32_t& index : indices) index = static_cast<int32_t>(random() % n);
        for (int64_t row = 0; row < rows; ++row) {
          std::sort(indices.begin() + row * count, indices.begin() + (row + 1) * count);
        }
        ASSERT_TRUE(Rise(indices.data(), rows, count, n));
        bool finite = true;
        Add(values.data(), indices.data(), rows * count, n, expected.data(), &finite);
        for (int64_t begin = 0; begin < n; begin += block) {
          SumBlock(values.data(), indices.data(), rows, count, begin, std::min(begin + block, n), out.data(), &finite);
        }
        EXPECT_EQ(out, expected);
        EXPECT_TRUE(finite);
      }
    }
  }
}

TEST(EntriesTest, WhatDoesNotRiseOrLeadsOutside) {
  EXPECT_TRUE(Rise(std::vector<int32_t>{0, 0, 3, 1, 2, 3}.data(), 2, 3, 4));
  EXPECT_FALSE(Rise(std::vector<int32_t>{0, 0, 3, 1, 3, 2}.data(), 2, 3, 4));
  EXPECT_FALSE(Rise(std::vector<int32_t>{1, 0, 3, 1, 2, 3}.data(), 2, 3, 4));
  EXPECT_FALSE(Rise(std::vector<int32_t>{0, 1, 4}.data(), 1, 3, 4));
  EXPECT_FALSE(Rise(std::vector<int32_t>{-1, 1, 3}.data(), 1, 3, 4));
}

TEST(EntriesTest, SumsThatAreNotFiniteAreSeen) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float most = std::numeric_limits<float>::max();
  const std::vector<int32_t> same = {1, 1};
  const std::vector<std::vector<float>> unusual = {
      {infinity, 1}, {1, -infinity}, {std::numeric_limits<float>::quiet_NaN(), 1}, {most, most}, {infinity, -infinity}};
  for (const std::vector<float>& values : unusual) {
    std::vector<float> out(3, 0.0f);
    bool finite = true;
    Add(values.data(), same.data(), 2, 3, out.data(), &finite);
    EXPECT_FALSE(finite);
    finite = true;
    SumBlock(values.data(), same.data(), 1, 2, 0, 3, out.data(), &finite);
    EXPECT_FALSE(finite);
  }
  std::vector<float> out(3, 0.0f);
  const std::vector<float> usual = {most, -most};
  bool finite = true;
  Add(usual.data(), same.data(), 2, 3, out.data(), &finite);
  EXPECT_TRUE(finite);
  finite = false;  // what was found before stays
  Add(usual.data(), same.data(), 2, 3, out.data(), &finite);
  EXPECT_FALSE(finite);
}

TEST(EntriesTest, AnIndexOutsideStopsBoth) {
  const std::vector<float> values = {1, 2, 3};
  for (const int32_t wrong : {-1, 4, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    const std::vector<int32_t> indices = {0, wrong, 1};
    std::vector<float> out(4, 0.0f);
    bool finite = true;
    EXPECT_EQ(Add(values.data(), indices.data(), 3, 4, out.data(), &finite), 1);
    EXPECT_EQ(Replace(values.data(), false, indices.data(), 3, 4, out.data()), 1);
    EXPECT_EQ(out, (std::vector<float>{1, 0, 0, 0}));
  }
}

TEST(EntriesTest, ReplaceTakesOneValueOrMany) {
  const std::vector<float> values = {1, 2, 3};
  const std::vector<int32_t> indices = {4, 0, 2};
  std::vector<float> out(5, 9.0f);
  EXPECT_EQ(Replace(values.data(), false, indices.data(), 3, 5, out.data()), kAllInside);
  EXPECT_EQ(out, (std::vector<float>{2, 9, 3, 9, 1}));
  EXPECT_EQ(Replace(values.data(), true, indices.data(), 2, 5, out.data()), kAllInside);
  EXPECT_EQ(out, (std::vector<float>{1, 9, 3, 9, 1}));
}

}  // namespace
}  // namespace entries
