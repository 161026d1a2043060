// Kernels and their launches.

#include "custom_ops/mstopk/gpu/gpu_top_k.h"

#include <algorithm>

#include "custom_ops/mstopk/gpu/emit.h"
#include "custom_ops/mstopk/gpu/on_chip.h"
#include "custom_ops/mstopk/gpu/pages.h"
#include "custom_ops/mstopk/gpu/plan.h"

namespace mstopk {
namespace gpu {
namespace {

// Long vectors.
struct Streamed {
  template <typename Bits>
  using Store = Pages<Bits>;
  static constexpr bool kOnChip = false;
  static constexpr uint32_t kMinChunk = 1024;  // elements per warp from which on another warp pays
  static uint32_t SharedWordsPerWarp(uint32_t) { return Pages<uint32_t>::kWordsPerWarp; }
};

// Short ones: a block has all shared memory of its multiprocessor, where the elements stay.
struct Resident {
  template <typename Bits>
  using Store = OnChip<Bits>;
  static constexpr bool kOnChip = true;
  static constexpr uint32_t kMinChunk = kChunkUnit;
  static constexpr int64_t kMaxElements = 1 << 20;  // beyond, it is faster to sample
  static uint32_t SharedWordsPerWarp(uint32_t chunk) { return chunk; }
};

template <typename Way, typename Bits, typename Index>
__global__ void __launch_bounds__(kThreads, 1)
    TopKEntry(const __grid_constant__ Plan plan, VectorSource<Bits> x, Bits* values,
              Index* indices) {
  SelectKernel(plan, typename Way::template Store<Bits>{plan}, x, values, indices);
}

template <typename Way, typename Format, typename Index>
__global__ void __launch_bounds__(kThreads, 1)
    ErrorFeedbackEntry(const __grid_constant__ Plan plan, SumSource<Format> sum, uint32_t* values,
                       Index* indices, bool* all_finite) {
  ErrorFeedbackKernel(plan, typename Way::template Store<uint32_t>{plan}, sum, values, indices,
                      all_finite);
}

template <typename Way>
size_t SharedBytes(uint32_t chunk) {
  return sizeof(Shared) + size_t{kBlockWarps} * Way::SharedWordsPerWarp(chunk) * sizeof(uint32_t);
}

// How many blocks of a way the device holds at once, of either kernel, with chunks of `chunk`.
template <typename Way, typename Format, typename Index>
cudaError_t CountBlocks(int multiprocessors, uint32_t chunk, uint32_t* blocks) {
  const void* const kernels[] = {
      reinterpret_cast<const void*>(TopKEntry<Way, typename Format::Bits, Index>),
      reinterpret_cast<const void*>(ErrorFeedbackEntry<Way, Format, Index>),
  };
  const size_t bytes = SharedBytes<Way>(chunk);
  *blocks = ~0u;
  for (const void* kernel : kernels) {
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(bytes));
    int per_multiprocessor = 0;
    if (status == cudaSuccess) {
      status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel,
                                                             kThreads, bytes);
    }
    if (status != cudaSuccess) return status;
    *blocks = std::min<uint32_t>(*blocks, per_multiprocessor * multiprocessors);
  }
  return cudaSuccess;
}

template <typename Way>
Plan PlanFor(int64_t n, int64_t k, uint32_t max_blocks, void* workspace, size_t* bytes) {
  constexpr int64_t kPerBlock = int64_t{kBlockWarps} * Way::kMinChunk;
  const int64_t blocks = std::min<int64_t>(max_blocks, (n + kPerBlock - 1) / kPerBlock);
  return MakePlan(static_cast<uint32_t>(n), static_cast<uint32_t>(k), blocks, kBlockWarps,
                  Way::kOnChip, static_cast<char*>(workspace), bytes);
}

template <typename Way, typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), cudaStream_t stream, const Plan& plan,
                   Arguments... arguments) {
  Plan by_value = plan;
  void* pointers[] = {&by_value, &arguments...};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel),
                                     dim3(plan.warps / kBlockWarps), dim3(kThreads), pointers,
                                     SharedBytes<Way>(plan.chunk), stream);
}

}  // namespace

template <typename Format, typename Index>
GpuTopK<Format, Index>::GpuTopK(int device) {
  int multiprocessors = 0;
  int shared_bytes = 0;  // that a block may have
  status_ = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status_ != cudaSuccess) return;
  status_ = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (status_ != cudaSuccess) return;
  status_ = CountBlocks<Streamed, Format, Index>(multiprocessors, 0, &streamed_blocks_);
  if (status_ == cudaSuccess && streamed_blocks_ == 0) status_ = cudaErrorLaunchOutOfResources;
  if (status_ != cudaSuccess) return;
  const size_t rows = (shared_bytes - sizeof(Shared)) /
                      (sizeof(uint32_t) * kBlockWarps * kChunkUnit);
  const uint32_t chunk = static_cast<uint32_t>(rows) * kChunkUnit;
  if (CountBlocks<Resident, Format, Index>(multiprocessors, chunk, &resident_blocks_) != cudaSuccess) {
    cudaGetLastError();  // nothing stays on the chip then
    return;
  }
  resident_elements_ = std::min(Resident::kMaxElements,
                                int64_t{resident_blocks_} * kBlockWarps * chunk);
}

// fn(way, how many blocks of it there may be), for n elements.
template <typename Format, typename Index>
template <typename Fn>
auto GpuTopK<Format, Index>::ByTheWay(int64_t n, Fn fn) const {
  return n <= resident_elements_ ? fn(Resident{}, resident_blocks_)
                                 : fn(Streamed{}, streamed_blocks_);
}

template <typename Format, typename Index>
size_t GpuTopK<Format, Index>::WorkspaceBytes(int64_t n, int64_t k) const {
  return ByTheWay(n, [&](auto way, uint32_t blocks) {
    size_t bytes = 0;
    PlanFor<decltype(way)>(n, k, blocks, nullptr, &bytes);
    return bytes;
  });
}

template <typename Format, typename Index>
cudaError_t GpuTopK<Format, Index>::Select(const Bits* x, int64_t n, int64_t k, void* workspace,
                                           Bits* values, Index* indices,
                                           cudaStream_t stream) const {
  const VectorSource<Bits> source = {x};
  return ByTheWay(n, [&](auto way, uint32_t blocks) {
    using Way = decltype(way);
    size_t bytes = 0;
    const Plan plan = PlanFor<Way>(n, k, blocks, workspace, &bytes);
    return Launch<Way>(TopKEntry<Way, Bits, Index>, stream, plan, source, values, indices);
  });
}

template <typename Format, typename Index>
cudaError_t GpuTopK<Format, Index>::ErrorFeedback(const Bits* grad, const uint32_t* residual,
                                                  int64_t n, int64_t k, void* workspace,
                                                  uint32_t* new_residual, uint32_t* values,
                                                  Index* indices, bool* all_finite,
                                                  cudaStream_t stream) const {
  const SumSource<Format> sum = {grad, residual, new_residual};
  return ByTheWay(n, [&](auto way, uint32_t blocks) {
    using Way = decltype(way);
    size_t bytes = 0;
    const Plan plan = PlanFor<Way>(n, k, blocks, workspace, &bytes);
    return Launch<Way>(ErrorFeedbackEntry<Way, Format, Index>, stream, plan, sum, values, indices,
                       all_finite);
  });
}

template class GpuTopK<Float32, int32_t>;
template class GpuTopK<Float32, int64_t>;
template class GpuTopK<Float16, int32_t>;
template class GpuTopK<Float16, int64_t>;
template class GpuTopK<BFloat16, int32_t>;
template class GpuTopK<BFloat16, int64_t>;

}  // namespace gpu
}  // namespace mstopk
