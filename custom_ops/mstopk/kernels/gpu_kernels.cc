// Mstopk and MstopkErrorFeedback on CUDA devices: allocates and launches on TensorFlow's stream.
// Built by gpu/build_ops.sh only; the CPU library does not contain it.

#include "absl/strings/str_cat.h"
#include "custom_ops/mstopk/gpu/gpu_top_k.h"
#include "custom_ops/mstopk/kernels/formats.h"
#include "custom_ops/mstopk/kernels/read_k.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/stream_executor.h"

namespace tensorflow {
namespace {

cudaStream_t StreamOf(OpKernelContext* context) {
  return static_cast<cudaStream_t>(
      context->op_device_context()->stream()->platform_specific_handle().stream);
}

absl::Status FromCuda(cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("MSTopK on the GPU: ", cudaGetErrorString(error)));
}

absl::Status CheckLength(int64_t n) {
  constexpr int64_t kMax = mstopk::gpu::GpuTopK<mstopk::Float32, int64_t>::kMaxElements;
  if (n <= kMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a row has ", n, " elements; on the GPU at most ",
                                                 kMax, " are supported: split the vector"));
}

// Device memory that lives until the kernels queued so far have used it.
absl::Status AllocateWorkspace(OpKernelContext* context, size_t bytes, Tensor* workspace) {
  return context->allocate_temp(DT_UINT8, TensorShape({static_cast<int64_t>(bytes)}), workspace);
}

// The selector of the device in use, made at the first call, when the device is known to be ready.
template <typename Format, typename Index>
class Selector {
 public:
  absl::Status Get(const mstopk::gpu::GpuTopK<Format, Index>** selector) {
    mutex_lock lock(mutex_);
    if (selector_ == nullptr) {
      int device = 0;
      TF_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&device)));
      auto made = std::make_unique<mstopk::gpu::GpuTopK<Format, Index>>(device);
      TF_RETURN_IF_ERROR(FromCuda(made->status()));
      selector_ = std::move(made);
    }
    *selector = selector_.get();
    return absl::OkStatus();
  }

 private:
  mutex mutex_;
  std::unique_ptr<mstopk::gpu::GpuTopK<Format, Index>> selector_ TF_GUARDED_BY(mutex_);
};

template <typename T, typename Index>
class GpuMstopkOp : public OpKernel {
 public:
  explicit GpuMstopkOp(OpKernelConstruction* context) : OpKernel(context) {
    int64_t num_samplings = 0;
    bool sorted = false;
    OP_REQUIRES_OK(context, context->GetAttr("num_samplings", &num_samplings));
    OP_REQUIRES_OK(context, context->GetAttr("sorted", &sorted));
    OP_REQUIRES(context, num_samplings < 0 && !sorted,
                absl::UnimplementedError("num_samplings and sorted are supported on the CPU only"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& input = context->input(0);
    int64_t k = 0;
    TensorShape shape;
    OP_REQUIRES_OK(context, OutputShape<Index>(input.shape(), context->input(1), &k, &shape));
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &indices));
    if (shape.num_elements() == 0) return;
    const int64_t n = input.dim_size(input.dims() - 1);
    OP_REQUIRES_OK(context, CheckLength(n));
    const mstopk::gpu::GpuTopK<Format, Index>* selector = nullptr;
    OP_REQUIRES_OK(context, selector_.Get(&selector));
    Tensor workspace;
    OP_REQUIRES_OK(context, AllocateWorkspace(context, selector->WorkspaceBytes(n, k), &workspace));
    // Rows share the workspace: kernels of one stream run one after the other.
    for (int64_t row = 0; row < shape.num_elements() / k; ++row) {
      OP_REQUIRES_OK(context, FromCuda(selector->Select(
                                  BitsOf<T>(input) + row * n, n, k, workspace.data(),
                                  MutableBitsOf<T>(values) + row * k,
                                  indices->flat<Index>().data() + row * k, StreamOf(context))));
    }
  }

 private:
  using Format = typename FormatOf<T>::Type;
  Selector<Format, Index> selector_;
};

template <typename T, typename Index>
class GpuErrorFeedbackOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& grad = context->input(0);
    const Tensor& residual = context->input(1);
    int64_t k = 0;
    OP_REQUIRES_OK(
        context, CheckErrorFeedback<Index>(grad.shape(), residual.shape(), context->input(2), &k));
    const int64_t n = grad.dim_size(0);
    OP_REQUIRES_OK(context, CheckLength(n));
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    Tensor* new_residual = nullptr;
    Tensor* all_finite = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({k}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({k}), &indices));
    OP_REQUIRES_OK(context, context->allocate_output(2, grad.shape(), &new_residual));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &all_finite));
    bool* const finite = all_finite->scalar<bool>().data();
    if (n == 0) {
      OP_REQUIRES_OK(context, FromCuda(cudaMemsetAsync(finite, 1, 1, StreamOf(context))));
      return;
    }
    const mstopk::gpu::GpuTopK<Format, Index>* selector = nullptr;
    OP_REQUIRES_OK(context, selector_.Get(&selector));
    Tensor workspace;
    OP_REQUIRES_OK(context, AllocateWorkspace(context, selector->WorkspaceBytes(n, k), &workspace));
    OP_REQUIRES_OK(context, FromCuda(selector->ErrorFeedback(
                                BitsOf<T>(grad), BitsOf<float>(residual), n, k, workspace.data(),
                                MutableBitsOf<float>(new_residual), MutableBitsOf<float>(values),
                                indices->flat<Index>().data(), finite, StreamOf(context))));
  }

 private:
  using Format = typename FormatOf<T>::Type;
  Selector<Format, Index> selector_;
};

#define REGISTER_GPU(T, Index)                                      \
  REGISTER_KERNEL_BUILDER(Name("Mstopk")                            \
                              .Device(DEVICE_GPU)                   \
                              .HostMemory("k")                      \
                              .TypeConstraint<T>("T")               \
                              .TypeConstraint<Index>("index_type"), \
                          GpuMstopkOp<T, Index>);                   \
  REGISTER_KERNEL_BUILDER(Name("MstopkErrorFeedback")               \
                              .Device(DEVICE_GPU)                   \
                              .HostMemory("k")                      \
                              .TypeConstraint<T>("T")               \
                              .TypeConstraint<Index>("index_type"), \
                          GpuErrorFeedbackOp<T, Index>)
REGISTER_GPU(float, int32_t);
REGISTER_GPU(float, int64_t);
REGISTER_GPU(Eigen::half, int32_t);
REGISTER_GPU(Eigen::half, int64_t);
REGISTER_GPU(bfloat16, int32_t);
REGISTER_GPU(bfloat16, int64_t);
#undef REGISTER_GPU

}  // namespace
}  // namespace tensorflow
