// MstopkErrorFeedback on the CPU: checks, allocates or forwards, and calls the fused algorithm.

#include "custom_ops/mstopk/error_feedback.h"
#include "custom_ops/mstopk/kernels/cpu_runtime.h"
#include "custom_ops/mstopk/kernels/formats.h"
#include "custom_ops/mstopk/kernels/read_k.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

template <typename T, typename Index>
class MstopkErrorFeedbackOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& grad = context->input(0);
    const Tensor& residual = context->input(1);
    int64_t k = 0;
    OP_REQUIRES_OK(
        context, CheckErrorFeedback<Index>(grad.shape(), residual.shape(), context->input(2), &k));
    const int64_t n = grad.dim_size(0);
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    Tensor* new_residual = nullptr;
    Tensor* all_finite = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({k}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({k}), &indices));
    // In place of grad rather than of residual, which would have to wait until all of grad is checked.
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0, 1}, 2, grad.shape(),
                                                                      &new_residual));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &all_finite));
    SelectOrFail(context, [&] {
      all_finite->scalar<bool>()() = mstopk::ErrorFeedbackTopK<typename FormatOf<T>::Type>(
          BitsOf<T>(grad), BitsOf<float>(residual), n, k, PoolRuntime(context),
          MutableBitsOf<float>(new_residual), MutableBitsOf<float>(values),
          indices->flat<Index>().data());
    });
  }
};

#define REGISTER_ERROR_FEEDBACK(T, Index)                           \
  REGISTER_KERNEL_BUILDER(Name("MstopkErrorFeedback")               \
                              .Device(DEVICE_CPU)                   \
                              .TypeConstraint<T>("T")               \
                              .TypeConstraint<Index>("index_type"), \
                          MstopkErrorFeedbackOp<T, Index>)
REGISTER_ERROR_FEEDBACK(float, int32_t);
REGISTER_ERROR_FEEDBACK(float, int64_t);
REGISTER_ERROR_FEEDBACK(Eigen::half, int32_t);
REGISTER_ERROR_FEEDBACK(Eigen::half, int64_t);
REGISTER_ERROR_FEEDBACK(bfloat16, int32_t);
REGISTER_ERROR_FEEDBACK(bfloat16, int64_t);
#undef REGISTER_ERROR_FEEDBACK

}  // namespace
}  // namespace tensorflow
