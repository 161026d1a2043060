// Checks of the inputs that the CPU and GPU kernels share.

#ifndef CUSTOM_OPS_MSTOPK_KERNELS_READ_K_H_
#define CUSTOM_OPS_MSTOPK_KERNELS_READ_K_H_

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {

// The value of the scalar `k`, checked against the length n of the rows and the range of Index.
template <typename Index>
absl::Status ReadK(const Tensor& k_tensor, int64_t n, int64_t* k) {
  if (!TensorShapeUtils::IsScalar(k_tensor.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("k must be scalar, got shape ", k_tensor.shape().DebugString()));
  }
  *k = k_tensor.dtype() == DT_INT64 ? k_tensor.scalar<int64_t>()() : k_tensor.scalar<int32_t>()();
  if (*k < 0) return absl::InvalidArgumentError(absl::StrCat("Need k >= 0, got ", *k));
  if (n < *k) {
    return absl::InvalidArgumentError(
        absl::StrCat("input must have at least k columns. Had ", n, ", needed ", *k));
  }
  if (n - 1 > std::numeric_limits<Index>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("index_type int32 cannot address rows of ", n,
                                                   " elements: use index_type=tf.int64"));
  }
  return absl::OkStatus();
}

// k, and the shape of Mstopk's outputs.
template <typename Index>
absl::Status OutputShape(const TensorShape& input, const Tensor& k_tensor, int64_t* k,
                         TensorShape* output) {
  if (input.dims() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("input must be >= 1-D, got shape ", input.DebugString()));
  }
  TF_RETURN_IF_ERROR(ReadK<Index>(k_tensor, input.dim_size(input.dims() - 1), k));
  *output = input;
  output->set_dim(input.dims() - 1, *k);
  return absl::OkStatus();
}

// k, after checking the other inputs of MstopkErrorFeedback too.
template <typename Index>
absl::Status CheckErrorFeedback(const TensorShape& grad, const TensorShape& residual,
                                const Tensor& k_tensor, int64_t* k) {
  if (grad.dims() != 1 || grad != residual) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grad and residual must be vectors of one length, got shapes ", grad.DebugString(), " and ",
        residual.DebugString(), ": flatten both with tf.reshape(x, [-1])"));
  }
  return ReadK<Index>(k_tensor, grad.dim_size(0), k);
}

}  // namespace tensorflow

#endif  // CUSTOM_OPS_MSTOPK_KERNELS_READ_K_H_
