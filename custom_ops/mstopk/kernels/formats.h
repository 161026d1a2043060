// TensorFlow's element types as the algorithms' formats.

#ifndef CUSTOM_OPS_MSTOPK_KERNELS_FORMATS_H_
#define CUSTOM_OPS_MSTOPK_KERNELS_FORMATS_H_

#include "custom_ops/mstopk/key.h"
#include "tensorflow/core/framework/tensor.h"

namespace tensorflow {

template <typename T>
struct FormatOf;
template <>
struct FormatOf<float> {
  using Type = mstopk::Float32;
};
template <>
struct FormatOf<Eigen::half> {
  using Type = mstopk::Float16;
};
template <>
struct FormatOf<bfloat16> {
  using Type = mstopk::BFloat16;
};

// The elements of a tensor of type T as their bits.
template <typename T>
const typename FormatOf<T>::Type::Bits* BitsOf(const Tensor& tensor) {
  return reinterpret_cast<const typename FormatOf<T>::Type::Bits*>(tensor.flat<T>().data());
}

template <typename T>
typename FormatOf<T>::Type::Bits* MutableBitsOf(Tensor* tensor) {
  return reinterpret_cast<typename FormatOf<T>::Type::Bits*>(tensor->flat<T>().data());
}

}  // namespace tensorflow

#endif  // CUSTOM_OPS_MSTOPK_KERNELS_FORMATS_H_
