// The loop over one block, written once and compiled for each instruction set.

#include "custom_ops/segmented_norms/segmented_norms.h"

namespace segmented_norms {
namespace {

template <typename T>
__attribute__((always_inline)) inline Sums SumBlock(const T* w, const T* x, int64_t n, T c) {
  double sum_w[kLanes] = {};
  double sum_x[kLanes] = {};
  const auto add = [&](int64_t i, int lane) {
    const double wi = w[i];
    const double xi = x[i] + c * w[i];
    sum_w[lane] += wi * wi;
    sum_x[lane] += xi * xi;
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (int lane = 0; i < n; ++i, ++lane) add(i, lane);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      sum_w[lane] += sum_w[lane + half];
      sum_x[lane] += sum_x[lane + half];
    }
  }
  return {sum_w[0], sum_x[0]};
}

#if defined(__x86_64__)
template <typename T>
__attribute__((target("avx2"))) Sums SumBlockWithAvx2(const T* w, const T* x, int64_t n, T c) {
  return SumBlock(w, x, n, c);
}

template <typename T>
__attribute__((target("avx512f,prefer-vector-width=512"))) Sums SumBlockWithAvx512(const T* w,
                                                                                  const T* x,
                                                                                  int64_t n, T c) {
  return SumBlock(w, x, n, c);
}
#endif

}  // namespace

template <typename T>
Sums SumBlockBaseline(const T* w, const T* x, int64_t n, T c) {
  return SumBlock(w, x, n, c);
}

#if defined(__x86_64__)
template <typename T>
SumBlockFn<T> SumBlockAvx2() {
  return __builtin_cpu_supports("avx2") ? SumBlockWithAvx2<T> : nullptr;
}
template <typename T>
SumBlockFn<T> SumBlockAvx512() {
  return __builtin_cpu_supports("avx512f") ? SumBlockWithAvx512<T> : nullptr;
}
#else
template <typename T>
SumBlockFn<T> SumBlockAvx2() {
  return nullptr;
}
template <typename T>
SumBlockFn<T> SumBlockAvx512() {
  return nullptr;
}
#endif

template <typename T>
SumBlockFn<T> BestSumBlock() {
  if (const SumBlockFn<T> avx512 = SumBlockAvx512<T>()) return avx512;
  if (const SumBlockFn<T> avx2 = SumBlockAvx2<T>()) return avx2;
  return SumBlockBaseline<T>;
}

template Sums SumBlockBaseline(const float*, const float*, int64_t, float);
template Sums SumBlockBaseline(const double*, const double*, int64_t, double);
template SumBlockFn<float> SumBlockAvx2();
template SumBlockFn<double> SumBlockAvx2();
template SumBlockFn<float> SumBlockAvx512();
template SumBlockFn<double> SumBlockAvx512();
template SumBlockFn<float> BestSumBlock();
template SumBlockFn<double> BestSumBlock();

}  // namespace segmented_norms
