// Mstopk on the CPU: checks, allocates, and hands each row to the algorithm.

#include <algorithm>

#include "custom_ops/mstopk/kernels/cpu_runtime.h"
#include "custom_ops/mstopk/kernels/formats.h"
#include "custom_ops/mstopk/kernels/read_k.h"
#include "custom_ops/mstopk/mstopk.h"
#include "custom_ops/mstopk/paper_search.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

constexpr int64_t kGroupElements = 1 << 15;  // of short rows that a thread is woken for

template <typename T, typename Index>
class MstopkOp : public OpKernel {
 public:
  explicit MstopkOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_samplings", &num_samplings_));
    OP_REQUIRES_OK(context, context->GetAttr("sorted", &sorted_));
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
    SelectOrFail(context, [&] { SelectRows(context, k, values, indices); });
  }

 private:
  using Format = typename FormatOf<T>::Type;
  using Bits = typename Format::Bits;

  void SelectRows(OpKernelContext* context, int64_t k, Tensor* values, Tensor* indices) const {
    const Tensor& input = context->input(0);
    const int64_t n = input.dim_size(input.dims() - 1), rows = values->NumElements() / k;
    const auto* const x = BitsOf<T>(input);
    auto* const v = MutableBitsOf<T>(values);
    Index* const i = indices->flat<Index>().data();
    const mstopk::Runtime pool = PoolRuntime(context);
    if (n <= mstopk::kBlockElements) {  // a row has no parallelism of its own
      const mstopk::Runtime serial = {pool.kernels, mstopk::SerialFor};
      const int64_t group = std::max<int64_t>(1, kGroupElements / n);
      pool.parallel_for((rows + group - 1) / group, [&](int64_t g) {
        for (int64_t row = g * group; row < std::min(rows, (g + 1) * group); ++row) {
          SelectRow(x + row * n, n, k, serial, v + row * k, i + row * k);
        }
      });
    } else {
      for (int64_t row = 0; row < rows; ++row) {
        SelectRow(x + row * n, n, k, pool, v + row * k, i + row * k);
      }
    }
  }

  void SelectRow(const Bits* x, int64_t n, int64_t k, const mstopk::Runtime& runtime, Bits* values,
                 Index* indices) const {
    if (num_samplings_ < 0) {
      mstopk::TopK(x, n, k, runtime, values, indices);
    } else {
      mstopk::PaperTopK<Format>(x, n, k, num_samplings_, runtime, values, indices);
    }
    if (sorted_) mstopk::SortByMagnitude(k, values, indices);
  }

  int64_t num_samplings_;
  bool sorted_;
};

#define REGISTER_MSTOPK(T, Index)                                   \
  REGISTER_KERNEL_BUILDER(Name("Mstopk")                            \
                              .Device(DEVICE_CPU)                   \
                              .TypeConstraint<T>("T")               \
                              .TypeConstraint<Index>("index_type"), \
                          MstopkOp<T, Index>)
REGISTER_MSTOPK(float, int32_t);
REGISTER_MSTOPK(float, int64_t);
REGISTER_MSTOPK(Eigen::half, int32_t);
REGISTER_MSTOPK(Eigen::half, int64_t);
REGISTER_MSTOPK(bfloat16, int32_t);
REGISTER_MSTOPK(bfloat16, int64_t);
#undef REGISTER_MSTOPK

}  // namespace
}  // namespace tensorflow
