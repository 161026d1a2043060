// Work shared out over TensorFlow's threads.

#ifndef CUSTOM_OPS_ENTRIES_KERNELS_PARALLEL_FOR_H_
#define CUSTOM_OPS_ENTRIES_KERNELS_PARALLEL_FOR_H_

#include <functional>

#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {

// body(0) ... body(count - 1), each some `cycles` of work.
inline void ParallelFor(OpKernelContext* context, int64_t count, int64_t cycles,
                        const std::function<void(int64_t)>& body) {
  context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
      count, cycles, [&body](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) body(i);
      });
}

}  // namespace tensorflow

#endif  // CUSTOM_OPS_ENTRIES_KERNELS_PARALLEL_FOR_H_
