#include "custom_ops/permutation/permutation.h"

namespace permutation {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
// With fewer, three elements' places are not independent, and up to eight elements' orders not equally frequent.
uint64_t RoundsFor(int bits) { return bits <= 3 ? 40 : 16; }

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

int BitsFor(int64_t size) { return size <= 1 ? 0 : 64 - __builtin_clzll(size - 1); }

}  // namespace

uint64_t AddWord(uint64_t key, uint64_t word) { return Mix((key + kGolden) ^ Mix(word + kGolden)); }

int64_t Permuted(int64_t index, int64_t size, uint64_t key) {
  const int bits = BitsFor(size);
  const int low_bits = bits / 2;
  const uint64_t rounds = RoundsFor(bits);
  const uint64_t low_mask = (uint64_t{1} << low_bits) - 1;
  const uint64_t high_mask = (uint64_t{1} << (bits - low_bits)) - 1;
  uint64_t high = static_cast<uint64_t>(index) >> low_bits, low = index & low_mask;
  do {
    for (uint64_t round = 0; round < rounds; round += 2) {
      high ^= Mix((key ^ low) + round * kGolden) & high_mask;
      low ^= Mix((key ^ high) + (round + 1) * kGolden) & low_mask;
    }
  } while ((high << low_bits | low) >= static_cast<uint64_t>(size));
  return static_cast<int64_t>(high << low_bits | low);
}

}  // namespace permutation
