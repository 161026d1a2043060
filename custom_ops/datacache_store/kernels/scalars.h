// `Tensor::scalar` ends the process where a tensor has several elements.

#ifndef CUSTOM_OPS_DATACACHE_STORE_KERNELS_SCALARS_H_
#define CUSTOM_OPS_DATACACHE_STORE_KERNELS_SCALARS_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {

// An error unless all inputs have one element.
inline absl::Status CheckScalars(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input(i).NumElements() != 1) {
      return errors::InvalidArgument("input ", i, " has shape ", context->input(i).shape().DebugString(),
                                     "; all must be scalars");
    }
  }
  return absl::OkStatus();
}

}  // namespace tensorflow

#endif  // CUSTOM_OPS_DATACACHE_STORE_KERNELS_SCALARS_H_
