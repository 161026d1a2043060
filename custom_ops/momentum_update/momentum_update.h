// One step of momentum, in one read of weights, velocity and gradient and one write of the first two.
//
// For every element, in the arithmetic of T, rounded after each operation as written:
//   growth   = rate (g + decay w)
//   velocity = momentum v + growth
//   weight   = w - scale (nesterov ? momentum velocity + growth : velocity)
// Each element is by itself: the result depends neither on threads nor on the instruction set, but for
// denormal numbers, which the threads of TensorFlow take for zero and others may not.

#ifndef CUSTOM_OPS_MOMENTUM_UPDATE_MOMENTUM_UPDATE_H_
#define CUSTOM_OPS_MOMENTUM_UPDATE_MOMENTUM_UPDATE_H_

#include <cstdint>

namespace momentum_update {

template <typename T>
struct Factors {
  T rate;
  T scale;
  T momentum;
  T decay;
  bool nesterov;
};

// Elements [0, n). `new_w` and `new_v` are `w` and `v`, or overlap with nothing. T is float or double.
template <typename T>
void MomentumUpdate(const Factors<T>& factors, const T* g, int64_t n, const T* w, const T* v, T* new_w, T* new_v);

}  // namespace momentum_update

#endif  // CUSTOM_OPS_MOMENTUM_UPDATE_MOMENTUM_UPDATE_H_
