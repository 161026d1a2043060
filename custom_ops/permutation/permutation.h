// Pseudo-random permutations of [0, size), one element at a time: a Feistel network with cycle walking.
//
// The b = ceil(log2 size) bits of an index are cut into halves. Each round adds to one half, modulo 2, a hash of
// the other and of the key: undone by the same round, so that any number of rounds permutes [0, 2^b). Where that
// leads outside [0, size) it is applied again, less than twice on average. Enough to shuffle by: places of a few
// elements are independent. But of 16, 32, 64, ... elements the orders are the even ones, half of all.
//
// Source: Black and Rogaway, Ciphers with Arbitrary Finite Domains (CT-RSA 2002), section 4 and 5; the hash is
// SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).

#ifndef CUSTOM_OPS_PERMUTATION_PERMUTATION_H_
#define CUSTOM_OPS_PERMUTATION_PERMUTATION_H_

#include <cstdint>

namespace permutation {

constexpr int64_t kLargest = int64_t{1} << 62;  // size

// A key that depends on each bit of each of its words: begin with any number, add them one by one.
uint64_t AddWord(uint64_t key, uint64_t word);

// Where `index` of [0, size) goes under a key.
int64_t Permuted(int64_t index, int64_t size, uint64_t key);

}  // namespace permutation

#endif  // CUSTOM_OPS_PERMUTATION_PERMUTATION_H_
