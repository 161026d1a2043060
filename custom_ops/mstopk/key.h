// Magnitude keys: |x| as an unsigned integer that orders exactly like |x|.
//
// IEEE-754 magnitudes order like their bit patterns, so every comparison in this library is an
// integer comparison. That keeps denormals ordered on threads that flush them to zero (TensorFlow's
// do), makes -0 equal to +0, and ranks NaN > Inf > finite, the same on every device.
// float16 and bfloat16 share one 16-bit code path: only their conversion to float differs.

#ifndef CUSTOM_OPS_MSTOPK_KEY_H_
#define CUSTOM_OPS_MSTOPK_KEY_H_

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define MSTOPK_HOST_DEVICE __host__ __device__
#else
#define MSTOPK_HOST_DEVICE
#endif

namespace mstopk {

template <typename Bits>  // uint32_t (float32) or uint16_t (float16, bfloat16)
struct KeyTraits;

template <>
struct KeyTraits<uint32_t> {
  static constexpr int kBits = 31;
  static constexpr uint32_t kMax = 0x7fffffffu;
};

template <>
struct KeyTraits<uint16_t> {
  static constexpr int kBits = 15;
  static constexpr uint32_t kMax = 0x7fffu;
};

// The key of one stored element; keys are uint32_t whatever the element's width.
template <typename Bits>
MSTOPK_HOST_DEVICE inline uint32_t KeyOf(Bits bits) {
  return bits & KeyTraits<Bits>::kMax;
}

MSTOPK_HOST_DEVICE inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

MSTOPK_HOST_DEVICE inline uint32_t BitsFromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Element formats: how stored bits convert to float, and where non-finite keys begin.
struct Float32 {
  using Bits = uint32_t;
  static constexpr uint32_t kInfinity = 0x7f800000u;
  MSTOPK_HOST_DEVICE static float ToFloat(Bits bits) { return FloatFromBits(bits); }
};

struct BFloat16 {
  using Bits = uint16_t;
  static constexpr uint32_t kInfinity = 0x7f80u;
  MSTOPK_HOST_DEVICE static float ToFloat(Bits bits) { return FloatFromBits(uint32_t{bits} << 16); }
};

struct Float16 {
  using Bits = uint16_t;
  static constexpr uint32_t kInfinity = 0x7c00u;
  MSTOPK_HOST_DEVICE static float ToFloat(Bits bits) {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    const uint32_t exponent = (bits >> 10) & 0x1fu;
    const uint32_t mantissa = bits & 0x3ffu;
    if (exponent == 0x1f) {  // Inf; a NaN becomes quiet, as the hardware conversion makes it
      const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
      return FloatFromBits(sign | 0x7f800000u | quiet | (mantissa << 13));
    }
    if (exponent != 0) return FloatFromBits(sign | ((exponent + 112) << 23) | (mantissa << 13));
    if (mantissa == 0) return FloatFromBits(sign);
    int shift = 0;  // float16 denormals are normal float32 numbers
    while (((mantissa << shift) & 0x400u) == 0) ++shift;
    return FloatFromBits(sign | ((113u - shift) << 23) | (((mantissa << shift) & 0x3ffu) << 13));
  }
};

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_KEY_H_
