// Where a streaming pass takes its elements from: a vector, or the sum of gradient and residual. A lane's share
// of a row is fetched first and finished later, so that loads of several rows are on their way before the first
// store: neither the compiler nor the processor may have loads overtake it.

#ifndef CUSTOM_OPS_MSTOPK_GPU_SOURCE_H_
#define CUSTOM_OPS_MSTOPK_GPU_SOURCE_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/key.h"

namespace mstopk {
namespace gpu {

// Copies kCount elements from `from`, 16 bytes at a time where it is `aligned`.
template <int kCount, typename Bits>
MSTOPK_DEVICE void LoadElements(const Bits* from, bool aligned, uint32_t (&bits)[kCount]) {
  if (!aligned) {
    for (int i = 0; i < kCount; ++i) bits[i] = from[i];
    return;
  }
  constexpr int kPerQuad = 16 / sizeof(Bits);
  constexpr int kPerWord = 4 / sizeof(Bits);
  MSTOPK_UNROLL
  for (int q = 0; q < kCount / kPerQuad; ++q) {
    const Quad quad = LoadStreaming(reinterpret_cast<const Quad*>(from) + q);
    MSTOPK_UNROLL
    for (int i = 0; i < kPerQuad; ++i) {
      const uint32_t word = quad.word[i / kPerWord];
      bits[q * kPerQuad + i] = static_cast<Bits>(word >> (i % kPerWord * 8 * sizeof(Bits)));
    }
  }
}

// The elements of a vector. kPerLane of them, 16 bytes, are one lane's share of a row.
template <typename Element>
struct VectorSource {
  using Bits = Element;
  static constexpr int kPerLane = 16 / sizeof(Bits);
  const Bits* x;
  bool aligned;  // to 16 bytes

  MSTOPK_DEVICE uint32_t Load(uint32_t i) const { return x[i]; }
  MSTOPK_DEVICE uint32_t Peek(uint32_t i) const { return Load(i); }
  struct Fetched {
    uint32_t bits[kPerLane];
  };
  MSTOPK_DEVICE void Fetch(uint32_t first, Fetched& fetched) const {
    LoadElements(x + first, aligned, fetched.bits);
  }
  MSTOPK_DEVICE void Finish(uint32_t, const Fetched& fetched, uint32_t (&bits)[kPerLane]) const {
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) bits[i] = fetched.bits[i];
  }
  MSTOPK_DEVICE bool FoundNonFinite() const { return false; }
};

// residual + grad in float32, stored to `sum` as it is read.
template <typename Format>
struct SumSource {
  using Bits = uint32_t;
  static constexpr int kPerLane = 16 / sizeof(typename Format::Bits);
  const typename Format::Bits* grad;
  const uint32_t* residual;
  uint32_t* sum;
  bool aligned;  // all three, to 16 bytes
  bool non_finite = false;

  MSTOPK_DEVICE static uint32_t Add(uint32_t residual, uint32_t grad) {
    const float g = Format::ToFloat(static_cast<typename Format::Bits>(grad));
    return BitsFromFloat(AddFloats(FloatFromBits(residual), g));
  }
  MSTOPK_DEVICE static bool IsNonFinite(uint32_t grad) {
    return KeyOf(static_cast<typename Format::Bits>(grad)) >= Format::kInfinity;
  }

  MSTOPK_DEVICE uint32_t Peek(uint32_t i) const { return Add(residual[i], grad[i]); }
  MSTOPK_DEVICE uint32_t Load(uint32_t i) {
    non_finite |= IsNonFinite(grad[i]);
    return sum[i] = Peek(i);
  }
  struct Fetched {
    uint32_t grad[kPerLane];
    uint32_t residual[kPerLane];
  };
  MSTOPK_DEVICE void Fetch(uint32_t first, Fetched& fetched) const {
    LoadElements(grad + first, aligned, fetched.grad);
    LoadElements(residual + first, aligned, fetched.residual);
  }
  MSTOPK_DEVICE void Finish(uint32_t first, const Fetched& fetched, uint32_t (&bits)[kPerLane]) {
    MSTOPK_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      non_finite |= IsNonFinite(fetched.grad[i]);
      bits[i] = Add(fetched.residual[i], fetched.grad[i]);
    }
    if (!aligned) {
      for (int i = 0; i < kPerLane; ++i) sum[first + i] = bits[i];
      return;
    }
    MSTOPK_UNROLL
    for (int q = 0; q < kPerLane / 4; ++q) {
      StoreStreaming(reinterpret_cast<Quad*>(sum + first) + q,
                     {{bits[4 * q], bits[4 * q + 1], bits[4 * q + 2], bits[4 * q + 3]}});
    }
  }
  MSTOPK_DEVICE bool FoundNonFinite() const { return non_finite; }
};

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_SOURCE_H_
