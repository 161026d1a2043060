// EncodeIndices and DecodeIndices on the CPU: they check, allocate, and share the rows out.

#include <atomic>
#include <functional>

#include "custom_ops/entries/coding.h"
#include "custom_ops/entries/kernels/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // indices and bits of a row: no product of a few of these wraps

class CodingOp : public OpKernel {
 public:
  explicit CodingOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("low_bits", &low_));
    OP_REQUIRES_OK(context, context->GetAttr("upper_bits", &upper_));
    OP_REQUIRES(context, low_ <= 31 && upper_ <= kMost,
                errors::InvalidArgument("low_bits=", low_, " must be at most 31, upper_bits=", upper_,
                                        " at most ", kMost));
  }

 protected:
  entries::Coding Of(int64_t k) const { return {k, static_cast<int>(low_), upper_}; }

  // Calls body(row) for all rows, each some 10 cycles per index; false if it was of one of them.
  static bool All(OpKernelContext* context, int64_t rows, int64_t k, const std::function<bool(int64_t)>& body) {
    std::atomic<bool> good{true};
    ParallelFor(context, rows, 10 * k, [&](int64_t row) {
      if (!body(row)) good = false;
    });
    return good;
  }

 private:
  int64_t low_, upper_;
};

class EncodeIndicesOp : public CodingOp {
 public:
  using CodingOp::CodingOp;

  void Compute(OpKernelContext* context) override {
    const Tensor& indices = context->input(0);
    OP_REQUIRES(context, indices.dims() == 2,
                errors::InvalidArgument("indices has shape ", indices.shape().DebugString(), "; it must be [R, K]"));
    const int64_t rows = indices.dim_size(0), k = indices.dim_size(1);
    const entries::Coding coding = Of(k);
    OP_REQUIRES(context, k <= coding.upper,
                errors::InvalidArgument("upper_bits=", coding.upper, " must be at least K=", k));
    Tensor* words = nullptr;
    TensorShape shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape({rows, coding.words()}, &shape));
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &words));
    if (words->NumElements() == 0) return;  // of however many rows
    const int32_t* from = indices.flat<int32>().data();
    auto* to = reinterpret_cast<uint32_t*>(words->flat<int32>().data());
    const bool all = All(context, rows, k, [&](int64_t row) {
      return entries::Encode(from + row * k, coding, to + row * coding.words());
    });
    OP_REQUIRES(context, all,
                errors::InvalidArgument("indices must ascend and be below the limit that upper_bits=", coding.upper,
                                        " was chosen for"));
  }
};

class DecodeIndicesOp : public CodingOp {
 public:
  explicit DecodeIndicesOp(OpKernelConstruction* context) : CodingOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &k_));
    OP_REQUIRES(context, k_ <= Of(k_).upper,
                errors::InvalidArgument("upper_bits=", Of(k_).upper, " must be at least k=", k_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& words = context->input(0);
    const entries::Coding coding = Of(k_);
    OP_REQUIRES(context, words.dims() == 2 && words.dim_size(1) == coding.words(),
                errors::InvalidArgument("words has shape ", words.shape().DebugString(), "; it must be [R, ",
                                        coding.words(), "]"));
    const int64_t rows = words.dim_size(0);
    Tensor* indices = nullptr;
    TensorShape shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape({rows, k_}, &shape));
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &indices));
    if (words.NumElements() == 0) return;  // of however many rows
    const auto* from = reinterpret_cast<const uint32_t*>(words.flat<int32>().data());
    int32_t* to = indices->flat<int32>().data();
    const bool all = All(context, rows, k_, [&](int64_t row) {
      return entries::Decode(from + row * coding.words(), coding, to + row * k_);
    });
    OP_REQUIRES(context, all, errors::InvalidArgument("words do not encode k=", k_, " indices: they are damaged"));
  }

 private:
  int64_t k_;
};

REGISTER_KERNEL_BUILDER(Name("EncodeIndices").Device(DEVICE_CPU), EncodeIndicesOp);
REGISTER_KERNEL_BUILDER(Name("DecodeIndices").Device(DEVICE_CPU), DecodeIndicesOp);

}  // namespace
}  // namespace tensorflow
