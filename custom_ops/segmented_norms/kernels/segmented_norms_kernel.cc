// SegmentedNorms on the CPU: checks, allocates, and hands the segments to the algorithm.

#include <vector>

#include "custom_ops/segmented_norms/segmented_norms.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

template <typename T>
class SegmentedNormsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int layers = num_inputs() / 2;
    const Tensor& decays = context->input(2 * layers);
    OP_REQUIRES(context, decays.shape() == TensorShape({layers}),
                errors::InvalidArgument("decays has shape ", decays.shape().DebugString(),
                                        " but weights has ", layers,
                                        " tensors; give one number for each."));
    std::vector<segmented_norms::Segment<T>> segments;
    for (int i = 0; i < layers; ++i) {
      const Tensor& w = context->input(i);
      const Tensor& x = context->input(layers + i);
      OP_REQUIRES(context, w.shape() == x.shape(),
                  errors::InvalidArgument("weights[", i, "] has shape ", w.shape().DebugString(),
                                          " but directions[", i, "] has shape ",
                                          x.shape().DebugString(), "; they must agree."));
      segments.push_back({w.flat<T>().data(), x.flat<T>().data(), w.NumElements(),
                          decays.flat<T>()(i)});
    }
    Tensor* sums = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {layers, 2}, &sums));
    thread::ThreadPool* pool = context->device()->tensorflow_cpu_worker_threads()->workers;
    const auto parallel_for = [pool](int64_t count, const std::function<void(int64_t)>& body) {
      // Four blocks are 2 MB to read, some 0.1 ms: what a thread must be woken for at least.
      pool->ParallelFor(count, thread::ThreadPool::SchedulingParams::Fixed(4),
                        [&body](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) body(i);
                        });
    };
    segmented_norms::SegmentedNorms(segments, segmented_norms::BestSumBlock<T>(), parallel_for,
                                    sums->flat<double>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("SegmentedNorms").Device(DEVICE_CPU).TypeConstraint<float>("T"),
                        SegmentedNormsOp<float>);
REGISTER_KERNEL_BUILDER(Name("SegmentedNorms").Device(DEVICE_CPU).TypeConstraint<double>("T"),
                        SegmentedNormsOp<double>);

}  // namespace
}  // namespace tensorflow
