// Permuted: a permutation for every size and key, and each about as often as any other.

#include "custom_ops/permutation/permutation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace permutation {
namespace {

std::vector<int64_t> All(int64_t size, uint64_t key) {
  std::vector<int64_t> to(size);
  for (int64_t i = 0; i < size; ++i) to[i] = Permuted(i, size, key);
  return to;
}

TEST(PermutationTest, PermutesEverySize) {
  std::vector<int64_t> sizes(130);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {1000, 4095, 4096, 4097, 100'003});
  for (const int64_t size : sizes) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, AddWord(0, 7)}) {
      std::vector<int64_t> to = All(size, key);
      std::sort(to.begin(), to.end());
      for (int64_t i = 0; i < size; ++i) ASSERT_EQ(to[i], i) << size << " " << key;
    }
  }
}

TEST(PermutationTest, StaysWithinTheLargestSize) {
  for (const int64_t size : {kLargest, kLargest - 1, kLargest / 2 + 1}) {
    for (const int64_t index : {int64_t{0}, size / 3, size - 1}) {
      const int64_t to = Permuted(index, size, AddWord(0, 1));
      EXPECT_TRUE(0 <= to && to < size && to != index);
      EXPECT_NE(to, Permuted(index, size, AddWord(0, 2)));
    }
  }
}

// The permutations of a few elements, from keys that follow each other.
double ChiSquared(int64_t size, int64_t permutations) {
  constexpr int kEach = 400;
  std::map<std::vector<int64_t>, int64_t> counts;
  for (int64_t i = 0; i < kEach * permutations; ++i) ++counts[All(size, AddWord(AddWord(3, 5), i))];
  EXPECT_EQ(static_cast<int64_t>(counts.size()), permutations);
  double sum = 0;
  for (const auto& [order, count] : counts) sum += (count - kEach) * (count - kEach) / double{kEach};
  return sum;
}

TEST(PermutationTest, EachPermutationIsAboutAsFrequent) {
  // Beyond these with probability 1e-6.
  EXPECT_LT(ChiSquared(2, 2), 24);
  EXPECT_LT(ChiSquared(3, 6), 36);
  EXPECT_LT(ChiSquared(4, 24), 72);
  EXPECT_LT(ChiSquared(5, 120), 206);
  EXPECT_LT(ChiSquared(6, 720), 915);
}

// Of more elements: where three of them go.
TEST(PermutationTest, PlacesOfThreeAreIndependent) {
  constexpr int64_t kEach = 200;
  for (const int64_t size : {7, 8, 9, 12, 16, 17, 32}) {
    std::map<std::vector<int64_t>, int64_t> counts;
    const int64_t triples = size * (size - 1) * (size - 2);
    for (int64_t i = 0; i < kEach * triples; ++i) {
      const uint64_t key = AddWord(4, i);
      ++counts[{Permuted(0, size, key), Permuted(1, size, key), Permuted(size - 1, size, key)}];
    }
    double sum = (triples - static_cast<int64_t>(counts.size())) * double{kEach};
    for (const auto& [triple, count] : counts) sum += (count - kEach) * (count - kEach) / double{kEach};
    EXPECT_LT((sum - (triples - 1)) / std::sqrt(2.0 * (triples - 1)), 5) << size;
  }
}

TEST(PermutationTest, EachWordOfAKeyCounts) {
  EXPECT_NE(AddWord(AddWord(0, 1), 2), AddWord(AddWord(0, 2), 1));
  EXPECT_NE(AddWord(0, 1), AddWord(0, 2));
  EXPECT_NE(AddWord(1, 0), AddWord(0, 0));
}

// A run that another version began would go on in another order: with another datacache::FORMAT at least.
TEST(PermutationTest, IsWhatItWas) {
  EXPECT_EQ(All(10, AddWord(0, 7)), (std::vector<int64_t>{6, 1, 9, 2, 8, 5, 7, 3, 0, 4}));
}

}  // namespace
}  // namespace permutation
