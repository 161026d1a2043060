// MSTopK on a CUDA device: pointers and a stream, no TensorFlow.
//
// One cooperative launch does it all: sample, one streaming pass that appends candidates to pages and
// counts them, the exact k-th key among the few it can be, and the winners in index order. Short vectors
// stay on the chip whole, in shared memory, and are not sampled. Results equal the CPU's (../mstopk.h,
// ../error_feedback.h) in every bit. No host synchronisation.
//
// Reads of the input: one of short vectors. Of long ones one, and where very many elements tie the chunks that
// these win in; or two in all, if the sample has misled.

#ifndef CUSTOM_OPS_MSTOPK_GPU_GPU_TOP_K_H_
#define CUSTOM_OPS_MSTOPK_GPU_GPU_TOP_K_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "custom_ops/mstopk/key.h"

namespace mstopk {
namespace gpu {

// Format: Float32, Float16 or BFloat16; Index: int32_t or int64_t.
// Thread-compatible; an object serves one device, any stream and any number of calls.
template <typename Format, typename Index>
class GpuTopK {
 public:
  using Bits = typename Format::Bits;
  static constexpr int64_t kMaxElements = 0xffffffff;

  // Asks the device, which is to be the current one, how many blocks it can hold at once; status() says
  // whether it answered.
  explicit GpuTopK(int device);
  cudaError_t status() const { return status_; }

  // Device memory that a call needs, for k of n elements, 0 < n <= kMaxElements: somewhat more than 8 n of
  // long vectors, though few of these bytes are touched unless a sample misleads.
  size_t WorkspaceBytes(int64_t n, int64_t k) const;

  // As mstopk::TopK, 0 < k <= n; all pointers are to device memory, `workspace` 256-byte aligned.
  cudaError_t Select(const Bits* x, int64_t n, int64_t k, void* workspace, Bits* values,
                     Index* indices, cudaStream_t stream) const;

  // As mstopk::ErrorFeedbackTopK, 0 <= k <= n, n > 0; new_residual is disjoint from residual.
  cudaError_t ErrorFeedback(const Bits* grad, const uint32_t* residual, int64_t n, int64_t k,
                            void* workspace, uint32_t* new_residual, uint32_t* values,
                            Index* indices, bool* all_finite, cudaStream_t stream) const;

 private:
  template <typename Fn>
  auto ByTheWay(int64_t n, Fn fn) const;

  cudaError_t status_;
  // Blocks that are on the device together, for they wait for each other: by either way.
  uint32_t streamed_blocks_ = 0;
  uint32_t resident_blocks_ = 0;
  int64_t resident_elements_ = 0;  // that stay on the chip, at most
};

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_GPU_TOP_K_H_
