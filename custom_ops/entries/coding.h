// Ascending indices in few bits: Elias-Fano coding.
//
// The low l bits of the K indices stand as they are, one after the other; then a field of U bits in which entry i
// sets bit (index_i >> l) + i, so that the zeros between ones count the differences. All bits follow the order of
// value in words of 32. Any l is right; floor(log2 N / K) is the shortest for K of N indices, and
// U = K + ((N - 1) >> l).
//
// Source: Elias, "Efficient storage and retrieval by content and address of static files", JACM 1974.

#ifndef CUSTOM_OPS_ENTRIES_CODING_H_
#define CUSTOM_OPS_ENTRIES_CODING_H_

#include <cstdint>

namespace entries {

struct Coding {
  int64_t k;      // indices
  int low;        // l, 0 to 31
  int64_t upper;  // U, the bits of the field

  int64_t words() const { return (k * low + upper + 31) / 32; }
};

// Writes words() words; false where an index is less than the one before, or does not fit the field.
bool Encode(const int32_t* indices, const Coding& coding, uint32_t* words);

// Reads them into k indices; false unless they encode that many, which never descend and are below 2^31.
bool Decode(const uint32_t* words, const Coding& coding, int32_t* indices);

}  // namespace entries

#endif  // CUSTOM_OPS_ENTRIES_CODING_H_
