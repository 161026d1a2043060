#include "custom_ops/datacache_store/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace datacache {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table;
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

#if defined(__x86_64__)
uint64_t Word(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

// What a state becomes by kLane zero bytes. It is linear in the state's bytes: [place][byte].
constexpr size_t kLane = 1024;
using Shift = std::array<std::array<uint32_t, 256>, 4>;

Shift MakeShift() {
  const std::array<uint32_t, 256> table = MakeTable();
  Shift shift;
  for (int place = 0; place < 4; ++place) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t state = byte << (8 * place);
      for (size_t i = 0; i < kLane; ++i) state = (state >> 8) ^ table[state & 0xff];
      shift[place][byte] = state;
    }
  }
  return shift;
}

uint32_t Shifted(const Shift& by, uint32_t state) {
  return by[0][state & 0xff] ^ by[1][(state >> 8) & 0xff] ^ by[2][(state >> 16) & 0xff] ^
         by[3][state >> 24];
}

// The instruction takes three cycles, but one can begin in each: three lanes at once, joined by
// state(s, AB) = shifted(state(s, A)) ^ state(0, B).
__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(uint32_t crc, const void* data, size_t n) {
  static const Shift shift = MakeShift();
  const char* p = static_cast<const char*>(data);
  uint64_t state = ~crc;
  for (; n >= 3 * kLane; n -= 3 * kLane, p += 3 * kLane) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      // The processor does not see three lanes coming: from memory the next ones would take twice as long.
      if (i % 64 == 0) {
        for (int lane = 3; lane < 6; ++lane) __builtin_prefetch(p + lane * kLane + i);
      }
      state = _mm_crc32_u64(state, Word(p + i));
      second = _mm_crc32_u64(second, Word(p + kLane + i));
      third = _mm_crc32_u64(third, Word(p + 2 * kLane + i));
    }
    state = Shifted(shift, Shifted(shift, state) ^ second) ^ third;
  }
  for (; n >= 8; n -= 8, p += 8) state = _mm_crc32_u64(state, Word(p));
  for (; n > 0; --n, ++p) {
    state = _mm_crc32_u8(static_cast<uint32_t>(state), static_cast<unsigned char>(*p));
  }
  return ~static_cast<uint32_t>(state);
}
#endif

}  // namespace

uint32_t Crc32cPortable(uint32_t crc, const void* data, size_t n) {
  static const std::array<uint32_t, 256> table = MakeTable();
  const unsigned char* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ table[(crc ^ *p) & 0xff];
  return ~crc;
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t n) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  if (fast) return Crc32cSse42(crc, data, n);
#endif
  return Crc32cPortable(crc, data, n);
}

}  // namespace datacache
