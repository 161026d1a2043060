// Where a pass takes its elements from: a vector, or the sum of gradient and residual. An element is fetched
// first and finished later, so that loads of several rows are on their way before the first store: neither the
// compiler nor the processor may have loads overtake it.

#ifndef CUSTOM_OPS_MSTOPK_GPU_SOURCE_H_
#define CUSTOM_OPS_MSTOPK_GPU_SOURCE_H_

#include <cstdint>

#include "custom_ops/mstopk/gpu/device.h"
#include "custom_ops/mstopk/key.h"

namespace mstopk {
namespace gpu {

// The elements of a vector.
template <typename Element>
struct VectorSource {
  using Bits = Element;
  using Fetched = Bits;
  static constexpr uint32_t kRowsAtOnce = 16;  // at most; what registers there are for
  const Bits* x;

  MSTOPK_DEVICE Bits Peek(uint64_t i) const { return x[i]; }
  MSTOPK_DEVICE Fetched Fetch(uint64_t i) const { return LoadStreaming(x + i); }
  MSTOPK_DEVICE Bits Finish(uint64_t, Fetched fetched) { return fetched; }
  MSTOPK_DEVICE bool FoundNonFinite() const { return false; }
};

// residual + grad in float32, stored to `sum` as it is read.
template <typename Format>
struct SumSource {
  using Bits = uint32_t;
  static constexpr uint32_t kRowsAtOnce = 4;
  struct Fetched {
    typename Format::Bits grad;
    uint32_t residual;
  };
  const typename Format::Bits* grad;
  const uint32_t* residual;
  uint32_t* sum;
  bool non_finite = false;

  MSTOPK_DEVICE static Bits Add(const Fetched& fetched) {
    return BitsFromFloat(AddFloats(FloatFromBits(fetched.residual), Format::ToFloat(fetched.grad)));
  }
  MSTOPK_DEVICE Bits Peek(uint64_t i) const { return Add({grad[i], residual[i]}); }
  MSTOPK_DEVICE Fetched Fetch(uint64_t i) const {
    return {LoadConstant(grad + i), LoadConstant(residual + i)};
  }
  MSTOPK_DEVICE Bits Finish(uint64_t i, const Fetched& fetched) {
    non_finite |= KeyOf(fetched.grad) >= Format::kInfinity;
    const Bits bits = Add(fetched);
    sum[i] = bits;
    return bits;
  }
  MSTOPK_DEVICE bool FoundNonFinite() const { return non_finite; }
};

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_SOURCE_H_
