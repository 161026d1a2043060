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
__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(uint32_t crc, const void* data, size_t n) {
  const char* p = static_cast<const char*>(data);
  uint64_t state = ~crc;
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    state = _mm_crc32_u64(state, word);
  }
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
