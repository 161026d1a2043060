#include "custom_ops/entries/coding.h"

#include <algorithm>

namespace entries {

bool Encode(const int32_t* indices, const Coding& coding, uint32_t* words) {
  std::fill_n(words, coding.words(), 0u);
  const int64_t field = coding.k * coding.low;
  const uint32_t mask = (uint32_t{1} << coding.low) - 1;
  int32_t previous = 0;
  for (int64_t i = 0; i < coding.k; ++i) {
    if (indices[i] < previous) return false;
    previous = indices[i];
    const uint32_t index = indices[i];
    const int64_t place = int64_t{index >> coding.low} + i;
    if (place >= coding.upper) return false;
    words[(field + place) / 32] |= uint32_t{1} << ((field + place) % 32);
    if (coding.low == 0) continue;
    const uint64_t low = index & mask;
    const int64_t bit = i * coding.low;
    words[bit / 32] |= static_cast<uint32_t>(low << (bit % 32));
    if (bit % 32 + coding.low > 32) words[bit / 32 + 1] |= static_cast<uint32_t>(low >> (32 - bit % 32));
  }
  return true;
}

bool Decode(const uint32_t* words, const Coding& coding, int32_t* indices) {
  const int64_t field = coding.k * coding.low, end = field + coding.upper;
  const uint32_t mask = (uint32_t{1} << coding.low) - 1;
  int64_t i = 0;
  uint64_t least = 0;  // that the next index may be
  for (int64_t word = field / 32; word * 32 < end; ++word) {
    uint32_t ones = words[word];
    if (word == field / 32) ones &= ~uint32_t{0} << (field % 32);
    if (end - word * 32 < 32) ones &= (uint32_t{1} << (end - word * 32)) - 1;
    for (; ones != 0; ones &= ones - 1) {
      if (i == coding.k) return false;
      const int64_t place = word * 32 + __builtin_ctz(ones) - field;
      uint64_t low = 0;
      if (coding.low > 0) {
        const int64_t bit = i * coding.low;
        low = words[bit / 32] >> (bit % 32);
        if (bit % 32 + coding.low > 32) low |= uint64_t{words[bit / 32 + 1]} << (32 - bit % 32);
      }
      const uint64_t index = (static_cast<uint64_t>(place - i) << coding.low) | (low & mask);
      if (index < least || index > INT32_MAX) return false;
      least = index;
      indices[i++] = static_cast<int32_t>(index);
    }
  }
  return i == coding.k;
}

}  // namespace entries
