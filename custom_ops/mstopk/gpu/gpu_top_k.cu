// Kernels and their launches.

#include "custom_ops/mstopk/gpu/gpu_top_k.h"

#include <algorithm>

#include "custom_ops/mstopk/gpu/emit.h"
#include "custom_ops/mstopk/gpu/plan.h"

namespace mstopk {
namespace gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocksPerMultiprocessor = 2;  // 32 warps, each with 2 KB of loads in flight
constexpr uint32_t kMinChunk = 1024;         // elements per warp from which on another warp pays

template <typename Bits, typename Index>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    TopKEntry(const __grid_constant__ Plan plan, VectorSource<Bits> x, Bits* values,
              Index* indices) {
  SelectKernel(plan, x, values, indices);
}

template <typename Format, typename Index>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    ErrorFeedbackEntry(const __grid_constant__ Plan plan, SumSource<Format> sum, uint32_t* values,
                       Index* indices, bool* all_finite) {
  ErrorFeedbackKernel(plan, sum, values, indices, all_finite);
}

bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), uint32_t blocks, cudaStream_t stream,
                   const Plan& plan, Arguments... arguments) {
  const cudaError_t cleared = cudaMemsetAsync(plan.state, 0, sizeof(State), stream);
  if (cleared != cudaSuccess) return cleared;
  Plan by_value = plan;
  void* pointers[] = {&by_value, &arguments...};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(blocks),
                                     dim3(kThreads), pointers, sizeof(Shared), stream);
}

}  // namespace

template <typename Format, typename Index>
GpuTopK<Format, Index>::GpuTopK(int device) {
  int multiprocessors = 0;
  status_ = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const void* const kernels[] = {
      reinterpret_cast<const void*>(TopKEntry<Bits, Index>),
      reinterpret_cast<const void*>(ErrorFeedbackEntry<Format, Index>),
  };
  max_blocks_ = ~0u;
  for (const void* kernel : kernels) {
    int per_multiprocessor = 0;
    if (status_ == cudaSuccess) {
      status_ = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, kThreads,
                                                              sizeof(Shared));
    }
    max_blocks_ = std::min<uint32_t>(max_blocks_, per_multiprocessor * multiprocessors);
  }
  if (status_ == cudaSuccess && max_blocks_ == 0) status_ = cudaErrorLaunchOutOfResources;
}

template <typename Format, typename Index>
uint32_t GpuTopK<Format, Index>::Blocks(int64_t n) const {
  constexpr int64_t kPerBlock = int64_t{kThreads / 32} * kMinChunk;
  return static_cast<uint32_t>(std::min<int64_t>(max_blocks_, (n + kPerBlock - 1) / kPerBlock));
}

template <typename Format, typename Index>
size_t GpuTopK<Format, Index>::WorkspaceBytes(int64_t n, int64_t k) const {
  size_t bytes = 0;
  MakePlan(static_cast<uint32_t>(n), static_cast<uint32_t>(k), Blocks(n), kThreads / 32, nullptr,
           &bytes);
  return bytes;
}

template <typename Format, typename Index>
cudaError_t GpuTopK<Format, Index>::Select(const Bits* x, int64_t n, int64_t k, void* workspace,
                                           Bits* values, Index* indices,
                                           cudaStream_t stream) const {
  size_t bytes = 0;
  const Plan plan = MakePlan(static_cast<uint32_t>(n), static_cast<uint32_t>(k), Blocks(n),
                             kThreads / 32, static_cast<char*>(workspace), &bytes);
  const VectorSource<Bits> source = {x, IsAligned(x)};
  return Launch(TopKEntry<Bits, Index>, Blocks(n), stream, plan, source, values, indices);
}

template <typename Format, typename Index>
cudaError_t GpuTopK<Format, Index>::ErrorFeedback(const Bits* grad, const uint32_t* residual,
                                                  int64_t n, int64_t k, void* workspace,
                                                  uint32_t* new_residual, uint32_t* values,
                                                  Index* indices, bool* all_finite,
                                                  cudaStream_t stream) const {
  size_t bytes = 0;
  const Plan plan = MakePlan(static_cast<uint32_t>(n), static_cast<uint32_t>(k), Blocks(n),
                             kThreads / 32, static_cast<char*>(workspace), &bytes);
  const bool aligned = IsAligned(grad) && IsAligned(residual) && IsAligned(new_residual);
  const SumSource<Format> sum = {grad, residual, new_residual, aligned};
  return Launch(ErrorFeedbackEntry<Format, Index>, Blocks(n), stream, plan, sum, values, indices,
                all_finite);
}

template class GpuTopK<Float32, int32_t>;
template class GpuTopK<Float32, int64_t>;
template class GpuTopK<Float16, int32_t>;
template class GpuTopK<Float16, int64_t>;
template class GpuTopK<BFloat16, int32_t>;
template class GpuTopK<BFloat16, int64_t>;

}  // namespace gpu
}  // namespace mstopk
