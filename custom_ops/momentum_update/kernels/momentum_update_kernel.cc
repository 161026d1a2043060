// MomentumUpdate on the CPU: finds the variables, locks them, and shares the elements out.

#include <utility>

#include "custom_ops/momentum_update/momentum_update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tensorflow {
namespace {

template <typename T>
class MomentumUpdateOp : public OpKernel {
 public:
  explicit MomentumUpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* context) override {
    core::RefCountPtr<Var> weights, velocity;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &weights));
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 1), &velocity));
    OP_REQUIRES(context, weights.get() != velocity.get(),
                errors::InvalidArgument("weights and velocity are one variable; pass two"));
    // In the order that TensorFlow's own kernels keep, or two of them could wait for each other.
    Var *first = weights.get(), *second = velocity.get();
    if (second->mu() < first->mu()) std::swap(first, second);
    mutex_lock lock_first(*first->mu()), lock_second(*second->mu());
    OP_REQUIRES(context, weights->is_initialized && velocity->is_initialized,
                errors::FailedPrecondition("weights or velocity are not initialized"));
    const Tensor &old_w = *weights->tensor(), &old_v = *velocity->tensor(), &g = context->input(2);
    OP_REQUIRES(context,
                old_w.dtype() == g.dtype() && old_v.dtype() == g.dtype() && old_w.shape() == g.shape() &&
                    old_v.shape() == g.shape(),
                errors::InvalidArgument("weights are ", old_w.DebugString(0), ", velocity ", old_v.DebugString(0),
                                        ", gradient ", g.DebugString(0), "; dtypes and shapes must agree"));
    momentum_update::Factors<T> factors;
    const std::pair<const char*, T*> scalars[] = {{"rate", &factors.rate},
                                                  {"scale", &factors.scale},
                                                  {"momentum", &factors.momentum},
                                                  {"decay", &factors.decay}};
    for (const auto& [name, factor] : scalars) {
      const Tensor* scalar;
      OP_REQUIRES_OK(context, context->input(name, &scalar));
      OP_REQUIRES(context, TensorShapeUtils::IsScalar(scalar->shape()),
                  errors::InvalidArgument(name, " has shape ", scalar->shape().DebugString(),
                                          "; it must be a scalar"));
      *factor = scalar->template scalar<T>()();
    }
    factors.nesterov = nesterov_;
    Tensor new_w, new_v;
    OP_REQUIRES_OK(context, Writable(context, weights.get(), &new_w));
    OP_REQUIRES_OK(context, Writable(context, velocity.get(), &new_v));
    const T *from_g = g.flat<T>().data(), *from_w = old_w.flat<T>().data(), *from_v = old_v.flat<T>().data();
    T *to_w = new_w.flat<T>().data(), *to_v = new_v.flat<T>().data();
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
        // 2^16 elements are some 20 µs: what a thread must be woken for at least.
        g.NumElements(), thread::ThreadPool::SchedulingParams::Fixed(int64_t{1} << 16),
        [&](int64_t i, int64_t end) {
          momentum_update::MomentumUpdate(factors, from_g + i, end - i, from_w + i, from_v + i, to_w + i, to_v + i);
        });
    *weights->tensor() = new_w;
    *velocity->tensor() = new_v;
  }

 private:
  // Memory for a variable's new value: its own, unless somebody who has read the old value still holds it.
  static absl::Status Writable(OpKernelContext* context, Var* variable, Tensor* value) {
    const Tensor& old = *variable->tensor();
    if (!old.RefCountIsOne()) {
      return context->allocate_temp(old.dtype(), old.shape(), value);
    }
    *value = old;
    return absl::OkStatus();
  }

  bool nesterov_;
};

REGISTER_KERNEL_BUILDER(Name("MomentumUpdate").Device(DEVICE_CPU).TypeConstraint<float>("T"),
                        MomentumUpdateOp<float>);
REGISTER_KERNEL_BUILDER(Name("MomentumUpdate").Device(DEVICE_CPU).TypeConstraint<double>("T"),
                        MomentumUpdateOp<double>);

}  // namespace
}  // namespace tensorflow
