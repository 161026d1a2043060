// Streaming kernels in plain C++: the reference the other instruction sets are compared with.

#include "custom_ops/mstopk/scan.h"

#define MSTOPK_NAMESPACE scalar
#define MSTOPK_TARGET

namespace mstopk {
namespace scalar {

template <typename Bits>
inline uint64_t MaskAtLeast(const Bits* x, uint32_t floor) {
  uint64_t mask = 0;
  for (int i = 0; i < 64; ++i) mask |= uint64_t{KeyOf(x[i]) >= floor} << i;
  return mask;
}

template <bool kPastCaches, typename Format>
inline uint64_t AccumulateTile(Format, const typename Format::Bits* grad, const uint32_t* residual,
                               uint32_t floor, uint32_t zero_from, uint32_t* out, uint32_t* tile) {
  for (int i = 0; i < 64; ++i) {
    tile[i] = BitsFromFloat(FloatFromBits(residual[i]) + Format::ToFloat(grad[i]));
    out[i] = KeyOf(tile[i]) >= zero_from ? 0 : tile[i];
  }
  return MaskAtLeast(tile, floor);
}
inline void FenceStores() {}

}  // namespace scalar
}  // namespace mstopk

#include "custom_ops/mstopk/scan_impl.h"

namespace mstopk {

const ScanKernels& ScalarScan() {
  static constexpr ScanKernels kernels = scalar::MakeKernels("scalar");
  return kernels;
}

const ScanKernels& BestScan() {
  static const ScanKernels* const best = [] {
    if (const ScanKernels* avx512 = Avx512Scan()) return avx512;
    if (const ScanKernels* avx2 = Avx2Scan()) return avx2;
    return &ScalarScan();
  }();
  return *best;
}

}  // namespace mstopk
