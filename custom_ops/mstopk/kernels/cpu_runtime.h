// TensorFlow's thread pool as the algorithms' runtime, and what becomes of memory that they are refused.

#ifndef CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_
#define CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <new>

#include "absl/strings/str_cat.h"
#include "custom_ops/mstopk/runtime.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {

inline mstopk::Runtime PoolRuntime(OpKernelContext* context) {
  thread::ThreadPool* pool = context->device()->tensorflow_cpu_worker_threads()->workers;
  return {mstopk::BestScan(), [pool](int64_t count, const std::function<void(int64_t)>& body) {
            if (count <= 1) return mstopk::SerialFor(count, body);  // waking a thread costs more
            std::atomic<bool> refused{false};  // an exception that left a thread would end the process
            pool->ParallelFor(count, thread::ThreadPool::SchedulingParams::Fixed(1),
                              [&body, &refused](int64_t begin, int64_t end) {
                                try {
                                  for (int64_t i = begin; i < end; ++i) body(i);
                                } catch (const std::bad_alloc&) {
                                  refused = true;
                                }
                              });
            if (refused) throw std::bad_alloc();
          }};
}

// Runs `select`, which needs memory of its own beside the outputs: refused, it fails as an operation does.
template <class Select>
void SelectOrFail(OpKernelContext* context, const Select& select) {
  try {
    select();
  } catch (const std::bad_alloc&) {
    context->SetStatus(absl::ResourceExhaustedError(absl::StrCat(
        "no memory was left to select entries of a tensor of shape ", context->input(0).shape().DebugString(),
        ": give the process more, or select from shorter vectors")));
  }
}

}  // namespace tensorflow

#endif  // CUSTOM_OPS_MSTOPK_KERNELS_CPU_RUNTIME_H_
