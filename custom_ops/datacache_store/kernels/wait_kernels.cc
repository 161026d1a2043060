// How long those who iterate over datasets wait for batches.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "custom_ops/datacache_store/clock.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

// How long consumers waited for batches, by cache. A pipeline reads the clock when it is asked for a
// batch, and again when it has one.
struct Waits {
  std::atomic<int64_t> batches{0}, microseconds{0};
};

Waits& WaitsOf(const std::string& cache) {
  static std::mutex* mutex = new std::mutex;
  static auto* all = new std::map<std::string, std::unique_ptr<Waits>>;
  std::lock_guard<std::mutex> guard(*mutex);
  std::unique_ptr<Waits>& waits = (*all)[cache];
  if (waits == nullptr) waits = std::make_unique<Waits>();
  return *waits;
}

class AskedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* asked = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &asked));
    asked->scalar<int64_t>()() = datacache::Microseconds();
  }
};

class WaitedOp : public OpKernel {
 public:
  explicit WaitedOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string cache;
    OP_REQUIRES_OK(context, context->GetAttr("cache", &cache));
    waits_ = &WaitsOf(cache);
  }

  void Compute(OpKernelContext* context) override {
    ++waits_->batches;
    waits_->microseconds += datacache::Microseconds() - context->input(0).scalar<int64_t>()();
    context->set_output(0, context->input(0));
  }

 private:
  Waits* waits_ = nullptr;
};

class WaitStatsOp : public OpKernel {
 public:
  explicit WaitStatsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("cache", &cache_));
  }

  void Compute(OpKernelContext* context) override {
    const Waits& waits = WaitsOf(cache_);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {2}, &output));
    output->flat<int64_t>()(0) = waits.batches;
    output->flat<int64_t>()(1) = waits.microseconds;
  }

 private:
  std::string cache_;
};

REGISTER_KERNEL_BUILDER(Name("DatacacheAsked").Device(DEVICE_CPU), AskedOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheWaited").Device(DEVICE_CPU), WaitedOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheWaitStats").Device(DEVICE_CPU), WaitStatsOp);

}  // namespace
}  // namespace tensorflow
