// Streaming kernels for AVX2 with F16C. AVX2 compares signed integers only, which suits keys: they
// have no sign bit. `key >= floor` is `key > floor - 1`, and floor 0 admits everything.

#include "custom_ops/mstopk/scan.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define MSTOPK_NAMESPACE avx2
#define MSTOPK_TARGET __attribute__((target("avx2,f16c,bmi,popcnt")))

namespace mstopk {
namespace avx2 {

MSTOPK_TARGET inline __m256i Load(const void* x) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(x));
}

MSTOPK_TARGET inline uint64_t MaskAtLeast(const uint32_t* x, uint32_t floor) {
  const __m256i magnitude = _mm256_set1_epi32(KeyTraits<uint32_t>::kMax);
  const __m256i bound = _mm256_set1_epi32(static_cast<int32_t>(floor - 1));
  uint64_t mask = 0;
  for (int i = 0; i < 8; ++i) {
    const __m256i key = _mm256_and_si256(Load(x + 8 * i), magnitude);
    const __m256i above = _mm256_cmpgt_epi32(key, bound);
    const uint32_t bits = _mm256_movemask_ps(_mm256_castsi256_ps(above));
    mask |= uint64_t{bits} << (8 * i);
  }
  return mask;
}

MSTOPK_TARGET inline uint64_t MaskAtLeast(const uint16_t* x, uint32_t floor) {
  const __m256i magnitude = _mm256_set1_epi16(KeyTraits<uint16_t>::kMax);
  const __m256i bound = _mm256_set1_epi16(static_cast<int16_t>(floor - 1));
  uint64_t mask = 0;
  for (int i = 0; i < 2; ++i) {
    const __m256i low = _mm256_and_si256(Load(x + 32 * i), magnitude);
    const __m256i high = _mm256_and_si256(Load(x + 32 * i + 16), magnitude);
    // packs works within 128-bit halves: the permutation restores the order of the elements.
    const __m256i packed =
        _mm256_packs_epi16(_mm256_cmpgt_epi16(low, bound), _mm256_cmpgt_epi16(high, bound));
    const uint32_t bits = _mm256_movemask_epi8(_mm256_permute4x64_epi64(packed, 0xd8));
    mask |= uint64_t{bits} << (32 * i);
  }
  return mask;
}

MSTOPK_TARGET inline __m256 LoadAsFloat(Float32, const uint32_t* x) {
  return _mm256_castsi256_ps(Load(x));
}

MSTOPK_TARGET inline __m256 LoadAsFloat(Float16, const uint16_t* x) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
}

MSTOPK_TARGET inline __m256 LoadAsFloat(BFloat16, const uint16_t* x) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <bool kPastCaches, typename Format>
MSTOPK_TARGET inline uint64_t AccumulateTile(Format format, const typename Format::Bits* grad,
                                             const uint32_t* residual, uint32_t floor,
                                             uint32_t zero_from, uint32_t* out, uint32_t* tile) {
  const __m256i magnitude = _mm256_set1_epi32(KeyTraits<uint32_t>::kMax);
  const __m256i floor_bound = _mm256_set1_epi32(static_cast<int32_t>(floor - 1));
  const __m256i zero_bound = _mm256_set1_epi32(static_cast<int32_t>(zero_from - 1));
  __m256i sums[8];
  uint64_t mask = 0;
  for (int i = 0; i < 8; ++i) {
    sums[i] = _mm256_castps_si256(_mm256_add_ps(LoadAsFloat(Float32(), residual + 8 * i),
                                                LoadAsFloat(format, grad + 8 * i)));
    const __m256i key = _mm256_and_si256(sums[i], magnitude);
    const __m256i above = _mm256_cmpgt_epi32(key, floor_bound);
    const uint32_t bits = _mm256_movemask_ps(_mm256_castsi256_ps(above));
    mask |= uint64_t{bits} << (8 * i);
  }
  for (int i = 0; i < 8; ++i) {  // apart from the loads: half a line past the caches must not wait
    const __m256i key = _mm256_and_si256(sums[i], magnitude);
    const __m256i stored = _mm256_andnot_si256(_mm256_cmpgt_epi32(key, zero_bound), sums[i]);
    if (kPastCaches) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(out + 8 * i), stored);
    } else {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * i), stored);
    }
  }
  for (int i = 0; i < 8; ++i) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(tile + 8 * i), sums[i]);
  }
  return mask;
}

inline void FenceStores() { _mm_sfence(); }

}  // namespace avx2
}  // namespace mstopk

#include "custom_ops/mstopk/scan_impl.h"

namespace mstopk {

const ScanKernels* Avx2Scan() {
  static constexpr ScanKernels kernels = avx2::MakeKernels("avx2");
  static const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                                __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  return supported ? &kernels : nullptr;
}

}  // namespace mstopk

#else

namespace mstopk {
const ScanKernels* Avx2Scan() { return nullptr; }
}  // namespace mstopk

#endif
