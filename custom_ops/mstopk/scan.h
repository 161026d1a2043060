// The streaming kernels, one set per instruction set, chosen at run time.
//
// All sets give identical results; they differ in speed only.

#ifndef CUSTOM_OPS_MSTOPK_SCAN_H_
#define CUSTOM_OPS_MSTOPK_SCAN_H_

#include <cstdint>
#include <type_traits>

#include "custom_ops/mstopk/key.h"

namespace mstopk {

// A scan may write this many slots past the candidates it reports.
constexpr int64_t kScanSlack = 64;

// Appends every element of x[0, n) whose key is at least `floor` as (bits, first_offset +
// position), in order. Returns how many. `bits` and `offsets` hold n + kScanSlack slots.
template <typename Bits>
using CollectFn = int64_t (*)(const Bits* x, int64_t n, uint32_t floor, uint32_t first_offset,
                              Bits* bits, uint32_t* offsets);

// Collects candidates of acc = residual + grad, added in float32, as CollectFn does, and stores acc
// to `out`, with zeros for keys of at least `zero_from` >= floor. `residual` and `out` are float32
// numbers given as their bits, as everywhere in this library. `out` may be `residual` or `grad`; if it is
// neither and is 64-byte aligned, it is written past the caches. Sets *non_finite when grad holds NaN or
// Inf, and leaves it alone otherwise.
template <typename Bits>
using AccumulateFn = int64_t (*)(const Bits* grad, const uint32_t* residual, int64_t n,
                                 uint32_t floor, uint32_t zero_from, uint32_t first_offset,
                                 uint32_t* out, uint32_t* bits, uint32_t* offsets,
                                 bool* non_finite);

struct ScanKernels {
  const char* name;
  CollectFn<uint32_t> collect32;
  CollectFn<uint16_t> collect16;
  AccumulateFn<uint32_t> accumulate_f32;
  AccumulateFn<uint16_t> accumulate_f16;
  AccumulateFn<uint16_t> accumulate_bf16;
};

const ScanKernels& ScalarScan();
const ScanKernels* Avx2Scan();    // nullptr where the processor lacks AVX2 and F16C
const ScanKernels* Avx512Scan();  // nullptr where the processor lacks AVX-512 F and BW

// The fastest set this processor runs.
const ScanKernels& BestScan();

template <typename Bits>
CollectFn<Bits> CollectKernel(const ScanKernels& kernels) {
  if constexpr (std::is_same_v<Bits, uint32_t>) {
    return kernels.collect32;
  } else {
    return kernels.collect16;
  }
}

template <typename Format>
auto AccumulateKernel(const ScanKernels& kernels) {
  if constexpr (std::is_same_v<Format, Float32>) {
    return kernels.accumulate_f32;
  } else if constexpr (std::is_same_v<Format, Float16>) {
    return kernels.accumulate_f16;
  } else {
    return kernels.accumulate_bf16;
  }
}

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_SCAN_H_
