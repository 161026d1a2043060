#include <vector>

#include "custom_ops/permutation/permutation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

class PermutedIndexOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& index = context->input(0);
    OP_REQUIRES(context, index.dims() == 1,
                errors::InvalidArgument("index has shape ", index.shape().DebugString(), ", must be [n]"));
    const int64_t n = index.NumElements();
    std::vector<Input> inputs;  // index, size, the key's words
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Tensor& input = context->input(i);
      OP_REQUIRES(context, input.dims() == 0 || (input.dims() == 1 && input.NumElements() == n),
                  errors::InvalidArgument("input ", i, " has shape ", input.shape().DebugString(),
                                          ", must be [] or [", n, "]"));
      inputs.push_back({input.flat<int64_t>().data(), input.dims()});
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, index.shape(), &output));
    auto permuted = output->flat<int64_t>();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = inputs[0][i], size = inputs[1][i];
      OP_REQUIRES(context, 0 <= at && at < size && size <= permutation::kLargest,
                  errors::InvalidArgument("index[", i, "] is ", at, " of a permutation of ", size,
                                          " elements; it must be 0 to size - 1, size at most 2^62"));
      uint64_t key = 0;
      for (size_t word = 2; word < inputs.size(); ++word) key = permutation::AddWord(key, inputs[word][i]);
      permuted(i) = permutation::Permuted(at, size, key);
    }
  }

 private:
  struct Input {
    const int64_t* data;
    int stride;  // 0: one for all
    int64_t operator[](int64_t i) const { return data[i * stride]; }
  };
};

REGISTER_KERNEL_BUILDER(Name("PermutedIndex").Device(DEVICE_CPU), PermutedIndexOp);

}  // namespace
}  // namespace tensorflow
