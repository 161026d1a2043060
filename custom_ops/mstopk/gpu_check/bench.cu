// Every contender and floor on the same normal float32 data, rotating among buffers so that the
// second-level cache holds none of them.

#include <cub/cub.cuh>
#include <cub/version.cuh>
#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#define MSTOPK_HAVE_CUB_TOPK
#endif

#include <cmath>
#include <numeric>
#include <random>

#include "custom_ops/mstopk/gpu/gpu_top_k.h"
#include "custom_ops/mstopk/gpu_check/bench.h"
#include "custom_ops/mstopk/gpu_check/device_buffer.h"

namespace mstopk {
namespace {

constexpr size_t kRotatedBytes = size_t{256} << 20;  // several times any second-level cache
constexpr int kSamples = 50;

__global__ void FillNormal(float* x, int64_t n, uint64_t seed) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    uint64_t z = (seed + i) * 0x9e3779b97f4a7c15u;  // splitmix64, then Box-Muller
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const float u = (static_cast<uint32_t>(z) + 1.0f) * 2.3283064e-10f;
    const float angle = static_cast<uint32_t>(z >> 32) * 1.4629181e-9f;
    x[i] = sqrtf(-2.0f * logf(fminf(u, 1.0f))) * cosf(angle);
  }
}

struct Magnitude {
  __host__ __device__ float operator()(float x) const { return fabsf(x); }
};
struct AtLeast {
  float threshold;
  __host__ __device__ bool operator()(float x) const { return fabsf(x) >= threshold; }
};
struct Larger {
  __host__ __device__ float operator()(float a, float b) const { return fmaxf(fabsf(a), fabsf(b)); }
};

class Bench {
 public:
  Bench(int64_t n, int64_t k, std::vector<Timing>* timings)
      : n_(n),
        k_(k),
        buffers_(std::max<size_t>(1, kRotatedBytes / (n * sizeof(float)))),
        x_(n * buffers_),
        values_(n),
        indices_(n),
        timings_(timings) {
    FillNormal<<<2048, 256>>>(x_.data(), x_.size(), 1);
    CHECK_CUDA(cudaDeviceSynchronize());
  }

  void Run() {
    Ours();
    Fused();
    CubTopK();
    CubSort();
    Floors();
  }

 private:
  const float* Input(int call) const { return x_.data() + call % buffers_ * n_; }

  template <typename Call>
  void Time(const char* what, Call call) {
    const int repeats = n_ <= (1 << 22) ? 20 : 1;
    const std::vector<double> times = TimeMicroseconds(kSamples, repeats, call);
    timings_->push_back(
        {what, n_, k_, times[kSamples / 2], times[kSamples / 10], times[kSamples * 9 / 10]});
    std::printf("%-28s n=2^%-2.0f k=%-8lld %10.1f us\n", what, std::log2(n_),
                static_cast<long long>(k_), times[kSamples / 2]);
  }

  // Asks cub for its temporary storage, then times the call with it.
  template <typename Call>
  void TimeCub(const char* what, Call call) {
    size_t bytes = 0;
    CHECK_CUDA(call(nullptr, bytes, 0));
    const DeviceBuffer<char> storage(bytes);
    Time(what, [&](int number) { CHECK_CUDA(call(storage.data(), bytes, number)); });
  }

  const uint32_t* Bits(int call) const { return reinterpret_cast<const uint32_t*>(Input(call)); }

  void Ours() {
    const gpu::GpuTopK<Float32, int32_t> selector(0);
    CHECK_CUDA(selector.status());
    const DeviceBuffer<char> workspace(selector.WorkspaceBytes(n_, k_));
    Time("mstopk", [&](int call) {
      CHECK_CUDA(selector.Select(Bits(call), n_, k_, workspace.data(),
                                 reinterpret_cast<uint32_t*>(values_.data()), indices_.data(),
                                 nullptr));
    });
  }

  void Fused() {
    const gpu::GpuTopK<Float32, int32_t> selector(0);
    const DeviceBuffer<char> workspace(selector.WorkspaceBytes(n_, k_));
    const DeviceBuffer<uint32_t> residual(std::vector<uint32_t>(n_, 0));
    const DeviceBuffer<uint32_t> kept(n_);
    const DeviceBuffer<bool> finite(1);
    Time("mstopk_error_feedback", [&](int call) {
      CHECK_CUDA(selector.ErrorFeedback(Bits(call), residual.data(), n_, k_, workspace.data(),
                                        kept.data(), reinterpret_cast<uint32_t*>(values_.data()),
                                        indices_.data(), finite.data(), nullptr));
    });
  }

  void CubTopK() {
#ifdef MSTOPK_HAVE_CUB_TOPK
    // The faster of its two uses: |x| computed beforehand and not timed, so that loads stay wide.
    const DeviceBuffer<float> magnitudes(x_.size());
    CHECK_CUDA(
        cub::DeviceTransform::Transform(x_.data(), magnitudes.data(), x_.size(), Magnitude{}));
    const auto requirements = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                       cuda::execution::output_ordering::unsorted);
    const thrust::counting_iterator<int32_t> positions(0);
    TimeCub("cub::DeviceTopK", [&](void* storage, size_t& bytes, int call) {
      return cub::DeviceTopK::MaxPairs(storage, bytes, magnitudes.data() + call % buffers_ * n_,
                                       values_.data(), positions, indices_.data(), n_, k_,
                                       requirements);
    });
#endif
  }

  void CubSort() {
    if (n_ > (1 << 26)) return;  // minutes of memory traffic for a known loser
    const DeviceBuffer<float> magnitudes(n_);
    std::vector<int32_t> host(n_);
    std::iota(host.begin(), host.end(), 0);
    const DeviceBuffer<int32_t> positions(host);
    CHECK_CUDA(cub::DeviceTransform::Transform(x_.data(), magnitudes.data(), n_, Magnitude{}));
    TimeCub("cub::DeviceRadixSort", [&](void* storage, size_t& bytes, int) {
      return cub::DeviceRadixSort::SortPairsDescending(
          storage, bytes, magnitudes.data(), values_.data(), positions.data(), indices_.data(), n_);
    });
  }

  void Floors() {
    Time("half of a device copy", [&](int call) {
      CHECK_CUDA(cudaMemcpyAsync(values_.data(), Input(call), n_ * sizeof(float) / 2,
                                 cudaMemcpyDeviceToDevice));
    });
    TimeCub("cub::DeviceReduce max", [&](void* storage, size_t& bytes, int call) {
      return cub::DeviceReduce::Reduce(storage, bytes, Input(call), values_.data(), n_, Larger{},
                                       0.0f);
    });
    const float threshold = OracleThreshold();
    const DeviceBuffer<int64_t> count(1);
    TimeCub("cub::DeviceSelect oracle", [&](void* storage, size_t& bytes, int call) {
      return cub::DeviceSelect::If(storage, bytes, Input(call), values_.data(), count.data(), n_,
                                   AtLeast{threshold});
    });
  }

  // |x| that a normal variable exceeds with probability k / n.
  float OracleThreshold() const {
    double low = 0, high = 10;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (std::erfc(middle / std::sqrt(2.0)) > static_cast<double>(k_) / n_ ? low : high) = middle;
    }
    return static_cast<float>(low);
  }

  const int64_t n_, k_;
  const size_t buffers_;
  const DeviceBuffer<float> x_;
  const DeviceBuffer<float> values_;
  const DeviceBuffer<int32_t> indices_;
  std::vector<Timing>* const timings_;
};

}  // namespace

std::vector<Timing> RunBenchmarks() {
  std::vector<Timing> timings;
  for (const int log_n : {18, 20, 22, 24, 26, 27}) {
    for (const int64_t share : {1000, 100}) {
      const int64_t n = int64_t{1} << log_n;
      Bench(n, n / share, &timings).Run();
    }
  }
  return timings;
}

}  // namespace mstopk
