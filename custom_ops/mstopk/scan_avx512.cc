// Streaming kernels for AVX-512 F and BW. Candidates leave through ordinary stores: compressing
// stores to memory are microcoded on Zen 4.

#include "custom_ops/mstopk/scan.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define MSTOPK_NAMESPACE avx512
#define MSTOPK_TARGET __attribute__((target("avx512f,avx512bw,bmi,popcnt")))

namespace mstopk {
namespace avx512 {

MSTOPK_TARGET inline uint64_t MaskAtLeast(const uint32_t* x, uint32_t floor) {
  const __m512i magnitude = _mm512_set1_epi32(KeyTraits<uint32_t>::kMax);
  const __m512i bound = _mm512_set1_epi32(floor);
  uint64_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + 16 * i), magnitude);
    mask |= uint64_t{_mm512_cmpge_epu32_mask(key, bound)} << (16 * i);
  }
  return mask;
}

MSTOPK_TARGET inline uint64_t MaskAtLeast(const uint16_t* x, uint32_t floor) {
  const __m512i magnitude = _mm512_set1_epi16(KeyTraits<uint16_t>::kMax);
  const __m512i bound = _mm512_set1_epi16(floor);
  uint64_t mask = 0;
  for (int i = 0; i < 2; ++i) {
    const __m512i key = _mm512_and_si512(_mm512_loadu_si512(x + 32 * i), magnitude);
    mask |= uint64_t{_mm512_cmpge_epu16_mask(key, bound)} << (32 * i);
  }
  return mask;
}

MSTOPK_TARGET inline __m512 LoadAsFloat(Float32, const uint32_t* x) {
  return _mm512_castsi512_ps(_mm512_loadu_si512(x));
}

MSTOPK_TARGET inline __m512 LoadAsFloat(Float16, const uint16_t* x) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}

MSTOPK_TARGET inline __m512 LoadAsFloat(BFloat16, const uint16_t* x) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <bool kPastCaches, typename Format>
MSTOPK_TARGET inline uint64_t AccumulateTile(Format format, const typename Format::Bits* grad,
                                             const uint32_t* residual, uint32_t floor,
                                             uint32_t zero_from, uint32_t* out, uint32_t* tile) {
  const __m512i magnitude = _mm512_set1_epi32(KeyTraits<uint32_t>::kMax);
  __m512i sums[4];
  uint64_t mask = 0;
  for (int i = 0; i < 4; ++i) {
    sums[i] = _mm512_castps_si512(_mm512_add_ps(LoadAsFloat(Float32(), residual + 16 * i),
                                                LoadAsFloat(format, grad + 16 * i)));
    const __m512i key = _mm512_and_si512(sums[i], magnitude);
    mask |= uint64_t{_mm512_cmpge_epu32_mask(key, _mm512_set1_epi32(floor))} << (16 * i);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i key = _mm512_and_si512(sums[i], magnitude);
    const __mmask16 stays = _mm512_cmplt_epu32_mask(key, _mm512_set1_epi32(zero_from));
    const __m512i stored = _mm512_maskz_mov_epi32(stays, sums[i]);
    if (kPastCaches) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(out + 16 * i), stored);
    } else {
      _mm512_storeu_si512(out + 16 * i, stored);
    }
  }
  for (int i = 0; i < 4; ++i) _mm512_store_si512(tile + 16 * i, sums[i]);
  return mask;
}

inline void FenceStores() { _mm_sfence(); }

}  // namespace avx512
}  // namespace mstopk

#include "custom_ops/mstopk/scan_impl.h"

namespace mstopk {

const ScanKernels* Avx512Scan() {
  static constexpr ScanKernels kernels = avx512::MakeKernels("avx512");
  static const bool supported = __builtin_cpu_supports("avx512f") &&
                                __builtin_cpu_supports("avx512bw") &&
                                __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  return supported ? &kernels : nullptr;
}

}  // namespace mstopk

#else

namespace mstopk {
const ScanKernels* Avx512Scan() { return nullptr; }
}  // namespace mstopk

#endif
