// One loop; memory, not arithmetic, is its limit, so that one instruction set is enough.

#include "custom_ops/momentum_update/momentum_update.h"

namespace momentum_update {
namespace {

template <bool kNesterov, typename T>
void Update(const Factors<T>& factors, const T* g, int64_t n, const T* w, const T* v, T* new_w, T* new_v) {
  const T rate = factors.rate, scale = factors.scale, momentum = factors.momentum, decay = factors.decay;
  // In place an element is written where it was read, which GCC cannot know: it would not vectorise.
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T growth = rate * (g[i] + decay * w[i]);
    const T velocity = momentum * v[i] + growth;
    new_w[i] = w[i] - scale * (kNesterov ? momentum * velocity + growth : velocity);
    new_v[i] = velocity;
  }
}

}  // namespace

template <typename T>
void MomentumUpdate(const Factors<T>& factors, const T* g, int64_t n, const T* w, const T* v, T* new_w, T* new_v) {
  (factors.nesterov ? Update<true, T> : Update<false, T>)(factors, g, n, w, v, new_w, new_v);
}

template void MomentumUpdate(const Factors<float>&, const float*, int64_t, const float*, const float*, float*,
                             float*);
template void MomentumUpdate(const Factors<double>&, const double*, int64_t, const double*, const double*, double*,
                             double*);

}  // namespace momentum_update
