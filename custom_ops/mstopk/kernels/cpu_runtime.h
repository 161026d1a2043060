// TensorFlow's thread pool as the algorithms' runtime, and checks that several kernels share.

#ifndef CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_
#define CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "custom_ops/mstopk/runtime.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {

inline mstopk::Runtime PoolRuntime(OpKernelContext* context) {
  thread::ThreadPool* pool = context->device()->tensorflow_cpu_worker_threads()->workers;
  return {mstopk::BestScan(), [pool](int64_t count, const std::function<void(int64_t)>& body) {
            if (count <= 1) return mstopk::SerialFor(count, body);  // waking a thread costs more
            pool->ParallelFor(count, thread::ThreadPool::SchedulingParams::Fixed(1),
                              [&body](int64_t begin, int64_t end) {
                                for (int64_t i = begin; i < end; ++i) body(i);
                              });
          }};
}

// The value of the scalar `k`, checked against the length n of the rows and the range of Index.
template <typename Index>
absl::Status ReadK(const Tensor& k_tensor, int64_t n, int64_t* k) {
  if (!TensorShapeUtils::IsScalar(k_tensor.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("k must be scalar, got shape ", k_tensor.shape().DebugString()));
  }
  *k = k_tensor.dtype() == DT_INT64 ? k_tensor.scalar<int64_t>()() : k_tensor.scalar<int32_t>()();
  if (*k < 0) return absl::InvalidArgumentError(absl::StrCat("Need k >= 0, got ", *k));
  if (n < *k) {
    return absl::InvalidArgumentError(
        absl::StrCat("input must have at least k columns. Had ", n, ", needed ", *k));
  }
  if (n - 1 > std::numeric_limits<Index>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("index_type int32 cannot address rows of ", n,
                                                   " elements: use index_type=tf.int64"));
  }
  return absl::OkStatus();
}

}  // namespace tensorflow

#endif  // CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_
