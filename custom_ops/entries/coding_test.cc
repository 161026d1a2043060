// Encode and Decode: there and back, the published example bit by bit, and words that no one encoded.

#include "custom_ops/entries/coding.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace entries {
namespace {

Coding ShortestFor(int64_t n, int64_t k) {
  int low = 0;
  while ((n / k) >> (low + 1)) ++low;
  return {k, low, k + ((n - 1) >> low)};
}

std::vector<int32_t> Chosen(int64_t n, int64_t k, std::mt19937* random) {
  std::vector<int32_t> indices;
  for (int64_t i = 0, left = k; i < n && left > 0; ++i) {
    if (static_cast<int64_t>((*random)() % (n - i)) < left) {
      indices.push_back(static_cast<int32_t>(i));
      --left;
    }
  }
  return indices;
}

TEST(CodingTest, ThereAndBack) {
  std::mt19937 random(1);
  for (const int64_t n : {1, 2, 31, 32, 33, 1000, 100'003}) {
    for (const int64_t k : {int64_t{1}, n / 100, n / 7, n / 2, n}) {
      if (k == 0) continue;
      const std::vector<int32_t> indices = Chosen(n, k, &random);
      for (int low = 0; low < 12; ++low) {
        const Coding coding = {k, low, k + ((n - 1) >> low)};
        std::vector<uint32_t> words(coding.words(), 0xdeadbeef);
        std::vector<int32_t> back(k);
        ASSERT_TRUE(Encode(indices.data(), coding, words.data()));
        ASSERT_TRUE(Decode(words.data(), coding, back.data()));
        EXPECT_EQ(back, indices);
      }
    }
  }
}

TEST(CodingTest, LargestIndices) {
  const std::vector<int32_t> indices = {0, 1, 2147483646};
  for (const int low : {20, 29, 30, 31}) {
    const Coding coding = {3, low, 3 + (2147483646 >> low)};
    std::vector<uint32_t> words(coding.words());
    std::vector<int32_t> back(3);
    ASSERT_TRUE(Encode(indices.data(), coding, words.data()));
    ASSERT_TRUE(Decode(words.data(), coding, back.data()));
    EXPECT_EQ(back, indices);
  }
}

TEST(CodingTest, BitByBit) {
  // 5 = 1|01, 8 = 2|00, 8 = 2|00, 15 = 3|11: low bits 01 00 00 11, field bits 1, 3, 4, 6.
  const std::vector<int32_t> indices = {5, 8, 8, 15};
  const Coding coding = {4, 2, 8};
  uint32_t word;
  ASSERT_EQ(coding.words(), 1);
  ASSERT_TRUE(Encode(indices.data(), coding, &word));
  EXPECT_EQ(word, 0b01011010'11000001u);
}

TEST(CodingTest, WhatDoesNotFitIsRefused) {
  const Coding coding = ShortestFor(100, 4);
  std::vector<uint32_t> words(coding.words());
  for (const std::vector<int32_t>& indices :
       {std::vector<int32_t>{0, 1, 2, 200}, {-1, 0, 1, 2}, {0, 1, 2, 2147483647}, {0, 9, 8, 99}, {99, 0, 0, 0}}) {
    EXPECT_FALSE(Encode(indices.data(), coding, words.data()));
  }
}

TEST(CodingTest, WordsThatNobodyEncodedDoNoHarm) {
  std::mt19937 random(2);
  const Coding coding = ShortestFor(5000, 50);
  std::vector<uint32_t> words(coding.words());
  std::vector<int32_t> indices(50);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::generate(words.begin(), words.end(), random);
    const bool decoded = Decode(words.data(), coding, indices.data());
    refused += !decoded;
    for (const int32_t index : indices) ASSERT_GE(index, 0);
    ASSERT_TRUE(!decoded || std::is_sorted(indices.begin(), indices.end()));
  }
  EXPECT_GT(refused, 1000);
  std::fill(words.begin(), words.end(), 0u);
  EXPECT_FALSE(Decode(words.data(), coding, indices.data()));
}

}  // namespace
}  // namespace entries
