// Puts what was read into a batch of which a store had a part.

#include <algorithm>
#include <cstring>

#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

// The rows of a batch that were not found come from another, in place.
class CompleteOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& found = context->input(0);
    OP_REQUIRES(context, TensorShapeUtils::IsVector(found.shape()),
                errors::InvalidArgument("found has shape ", found.shape().DebugString(), ", not [B]"));
    const auto here = found.vec<bool>();
    const int64_t batch = here.size();
    const int64_t missing = std::count(here.data(), here.data() + batch, false);
    for (int i = 0; i < context->num_outputs(); ++i) {
      const Tensor& values = context->input(1 + i);
      const Tensor& fresh = context->input(1 + context->num_outputs() + i);
      TensorShape expected = values.shape();
      OP_REQUIRES(context, values.dims() > 0 && values.dim_size(0) == batch,
                  errors::InvalidArgument("values[", i, "] has shape ", expected.DebugString(), " for ", batch,
                                          " samples"));
      expected.set_dim(0, missing);
      OP_REQUIRES(context, fresh.shape() == expected && DataTypeCanUseMemcpy(fresh.dtype()),
                  errors::InvalidArgument("fresh[", i, "] is ", DataTypeString(fresh.dtype()), " ",
                                          fresh.shape().DebugString(), ", not of shape ",
                                          expected.DebugString(), " for ", missing, " absent samples"));
      if (missing == batch) {
        context->set_output(i, fresh);
        continue;
      }
      Tensor* completed = nullptr;
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1 + i}, i, values.shape(), &completed));
      char* to = const_cast<char*>(completed->tensor_data().data());
      if (!completed->SharesBufferWith(values)) {
        std::memcpy(to, values.tensor_data().data(), values.tensor_data().size());
      }
      const char* from = fresh.tensor_data().data();
      const int64_t bytes = values.tensor_data().size() / batch;
      for (int64_t row = 0; row < batch; ++row) {
        if (here(row)) continue;
        std::memcpy(to + row * bytes, from, bytes);
        from += bytes;
      }
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DatacacheComplete").Device(DEVICE_CPU), CompleteOp);

}  // namespace
}  // namespace tensorflow
