// TensorFlow's thread pool as the algorithms' runtime.

#ifndef CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_
#define CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_

#include <cstdint>

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

}  // namespace tensorflow

#endif  // CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_
