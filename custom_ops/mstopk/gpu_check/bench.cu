// Every contender and floor on the same float32 data, one after the other in every round, rotating among buffers
// so that the second-level cache holds none of them.

#include <cub/cub.cuh>
#include <cub/version.cuh>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#if __has_include(<cub/device/device_topk.cuh>)
#include <cub/device/device_topk.cuh>
#define MSTOPK_HAVE_CUB_TOPK
#endif

#include <cmath>
#include <functional>
#include <memory>
#include <numeric>

#include "custom_ops/mstopk/gpu/gpu_top_k.h"
#include "custom_ops/mstopk/gpu_check/bench.h"
#include "custom_ops/mstopk/gpu_check/device_buffer.h"

namespace mstopk {
namespace {

constexpr size_t kRotatedBytes = size_t{256} << 20;  // several times any second-level cache
constexpr int kRounds = 50;

enum class Data { kNormal, kLaplace, kLognormal, kClipped, kZeros };

__global__ void Fill(float* x, int64_t n, Data data) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    uint64_t z = (1 + i) * 0x9e3779b97f4a7c15u;  // splitmix64, then Box-Muller
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const float u = fminf((static_cast<uint32_t>(z) + 1.0f) * 2.3283064e-10f, 1.0f);
    const float angle = static_cast<uint32_t>(z >> 32) * 1.4629181e-9f;
    const float normal = sqrtf(-2.0f * logf(u)) * cosf(angle);
    switch (data) {
      case Data::kNormal: x[i] = normal; break;
      case Data::kLaplace: x[i] = copysignf(logf(u), normal); break;
      case Data::kLognormal: x[i] = expf(8 * normal); break;
      case Data::kClipped: x[i] = fminf(fmaxf(normal, -0.5f), 0.5f); break;
      case Data::kZeros: x[i] = 0; break;
    }
  }
}

__global__ void ToBFloat16(const float* from, uint16_t* to, int64_t n) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    to[i] = static_cast<uint16_t>(__float_as_uint(from[i]) >> 16);
  }
}

struct Magnitude {
  __host__ __device__ float operator()(float x) const { return fabsf(x); }
};
struct AtLeast {
  float threshold;
  __host__ __device__ bool operator()(float x) const { return fabsf(x) >= threshold; }
};
struct Add {
  __host__ __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  __host__ __device__ float operator()(float a, float b) const { return fmaxf(fabsf(a), fabsf(b)); }
};

template <typename T>
using Shared = std::shared_ptr<DeviceBuffer<T>>;
template <typename T, typename From>
Shared<T> Make(const From& from) {
  return std::make_shared<DeviceBuffer<T>>(from);
}

class Bench {
 public:
  Bench(int64_t n, int64_t k, Data data)
      : n_(n),
        k_(k),
        buffers_(std::max<size_t>(1, kRotatedBytes / (n * sizeof(float)))),
        x_(n * buffers_),
        values_(n),
        indices_(n) {
    Fill<<<2048, 256>>>(x_.data(), x_.size(), data);
    CHECK_CUDA(cudaDeviceSynchronize());
  }

  void AddAll() {
    AddOurs("mstopk");
    AddInGraph();
    AddBFloat16();
    AddFused();
    AddCubTopK();
    AddCubSort();
    AddFloors();
  }

  void AddOurs(const std::string& name) {
    AddCall(name, [this, select = Selection<Float32>()](int call) {
      select(reinterpret_cast<const uint32_t*>(Input(call)), nullptr);
    });
  }

  // Times all, in turn.
  void Run(std::vector<Timing>* timings) {
    const int calls = n_ <= (1 << 22) ? 20 : 1;
    std::vector<std::vector<double>> times(contenders_.size());
    for (int round = -1; round < kRounds; ++round) {
      for (size_t c = 0; c < contenders_.size(); ++c) {
        const double time = Microseconds((round + 1) * calls, calls, contenders_[c].call);
        if (round >= 0) times[c].push_back(time);  // the first warms up
      }
    }
    for (size_t c = 0; c < contenders_.size(); ++c) {
      std::sort(times[c].begin(), times[c].end());
      const Timing timing = {contenders_[c].name,         n_, k_, times[c][kRounds / 2],
                             times[c][kRounds / 10], times[c][kRounds * 9 / 10]};
      std::printf("%-36s n=2^%-2.0f k=%-8lld %10.1f us\n", timing.what.c_str(), std::log2(n_),
                  static_cast<long long>(k_), timing.median_us);
      timings->push_back(timing);
    }
    std::fflush(stdout);
  }

 private:
  struct Contender {
    std::string name;
    std::function<void(int)> call;
  };

  const float* Input(int call) const { return x_.data() + call % buffers_ * n_; }
  uint32_t* ValueBits() const { return reinterpret_cast<uint32_t*>(values_.data()); }

  void AddCall(const std::string& name, std::function<void(int)> call) {
    contenders_.push_back({name, std::move(call)});
  }

  // Asks cub for its temporary storage, then adds the call with it.
  template <typename Call>
  void AddCub(const char* name, Call call) {
    size_t bytes = 0;
    CHECK_CUDA(call(nullptr, bytes, 0));
    AddCall(name, [call, storage = Make<char>(bytes)](int number) {
      size_t size = storage->size();
      CHECK_CUDA(call(storage->data(), size, number));
    });
  }

  template <typename Format>
  std::function<void(const typename Format::Bits* x, cudaStream_t stream)> Selection() {
    using Bits = typename Format::Bits;
    const auto selector = std::make_shared<gpu::GpuTopK<Format, int32_t>>(0);
    CHECK_CUDA(selector->status());
    const auto workspace = Make<char>(selector->WorkspaceBytes(n_, k_));
    return [this, selector, workspace](const Bits* x, cudaStream_t stream) {
      CHECK_CUDA(selector->Select(x, n_, k_, workspace->data(),
                                  reinterpret_cast<Bits*>(values_.data()), indices_.data(), stream));
    };
  }

  // Without the processor's share of a launch. It replays the same inputs: what runs between keeps them cold.
  void AddInGraph() {
    if (n_ > (1 << 22)) return;
    constexpr int kCalls = 20;
    const auto select = Selection<Float32>();
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK_CUDA(cudaStreamCreate(&stream));
    CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < kCalls; ++i) select(reinterpret_cast<const uint32_t*>(Input(i)), stream);
    CHECK_CUDA(cudaStreamEndCapture(stream, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    AddCall("mstopk, in a CUDA graph", [select, executable](int call) {
      if (call % kCalls == 0) CHECK_CUDA(cudaGraphLaunch(executable, nullptr));
    });
  }

  void AddBFloat16() {
    const auto x = Make<uint16_t>(x_.size());
    ToBFloat16<<<2048, 256>>>(x_.data(), x->data(), x_.size());
    AddCall("mstopk, bfloat16", [this, x, select = Selection<BFloat16>()](int call) {
      select(x->data() + call % buffers_ * n_, nullptr);
    });
  }

  void AddFused() {
    const auto selector = std::make_shared<gpu::GpuTopK<Float32, int32_t>>(0);
    CHECK_CUDA(selector->status());
    const auto workspace = Make<char>(selector->WorkspaceBytes(n_, k_));
    const auto residual = Make<uint32_t>(std::vector<uint32_t>(x_.size(), 0));
    const auto kept = Make<uint32_t>(x_.size());
    const auto finite = Make<bool>(1);
    AddCall("mstopk_error_feedback", [=](int call) {
      const size_t at = call % buffers_ * n_;
      CHECK_CUDA(selector->ErrorFeedback(reinterpret_cast<const uint32_t*>(Input(call)),
                                         residual->data() + at, n_, k_, workspace->data(),
                                         kept->data() + at, ValueBits(), indices_.data(),
                                         finite->data(), nullptr));
    });
  }

  void AddCubTopK() {
#ifdef MSTOPK_HAVE_CUB_TOPK
    const auto requirements = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                       cuda::execution::output_ordering::unsorted);
    const thrust::counting_iterator<int32_t> positions(0);
    // Its loads are wide only if |x| is made beforehand, which is not timed.
    const auto magnitudes = Make<float>(x_.size());
    CHECK_CUDA(
        cub::DeviceTransform::Transform(x_.data(), magnitudes->data(), x_.size(), Magnitude{}));
    AddCub("cub::DeviceTopK, |x| given", [=](void* storage, size_t& bytes, int call) {
      return cub::DeviceTopK::MaxPairs(storage, bytes, magnitudes->data() + call % buffers_ * n_,
                                       values_.data(), positions, indices_.data(), n_, k_,
                                       requirements);
    });
    AddCub("cub::DeviceTopK of x", [=](void* storage, size_t& bytes, int call) {
      return cub::DeviceTopK::MaxPairs(
          storage, bytes, thrust::make_transform_iterator(Input(call), Magnitude{}), values_.data(),
          positions, indices_.data(), n_, k_, requirements);
    });
#endif
  }

  void AddCubSort() {
    if (n_ > (1 << 26)) return;  // much memory traffic for a known loser, which gets one input, warm
    const auto magnitudes = Make<float>(n_);
    std::vector<int32_t> host(n_);
    std::iota(host.begin(), host.end(), 0);
    const auto positions = Make<int32_t>(host);
    CHECK_CUDA(cub::DeviceTransform::Transform(x_.data(), magnitudes->data(), n_, Magnitude{}));
    AddCub("cub::DeviceRadixSort", [=](void* storage, size_t& bytes, int) {
      return cub::DeviceRadixSort::SortPairsDescending(storage, bytes, magnitudes->data(),
                                                       values_.data(), positions->data(),
                                                       indices_.data(), n_);
    });
  }

  void AddFloors() {
    AddCall("half of a device copy", [this](int call) {
      CHECK_CUDA(cudaMemcpyAsync(values_.data(), Input(call), n_ * sizeof(float) / 2,
                                 cudaMemcpyDeviceToDevice));
    });
    AddCub("cub::DeviceReduce max", [this](void* storage, size_t& bytes, int call) {
      return cub::DeviceReduce::Reduce(storage, bytes, Input(call), values_.data(), n_, Larger{},
                                       0.0f);
    });
    const auto residual = Make<float>(std::vector<float>(x_.size(), 0));
    const auto sum = Make<float>(x_.size());
    AddCall("addition of two vectors", [=](int call) {
      const size_t at = call % buffers_ * n_;
      CHECK_CUDA(cub::DeviceTransform::Transform(
          cuda::std::make_tuple(Input(call), residual->data() + at), sum->data() + at, n_, Add{}));
    });
    const float threshold = OracleThreshold();
    const auto count = Make<int64_t>(1);
    AddCub("cub::DeviceSelect, oracle threshold", [=](void* storage, size_t& bytes, int call) {
      return cub::DeviceSelect::If(storage, bytes, Input(call), values_.data(), count->data(), n_,
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
  std::vector<Contender> contenders_;
};

}  // namespace

std::vector<Timing> RunBenchmarks() {
  std::vector<Timing> timings;
  for (const int log_n : {18, 20, 22, 24, 26, 27}) {
    for (const int64_t share : {1000, 100}) {
      const int64_t n = int64_t{1} << log_n;
      Bench bench(n, n / share, Data::kNormal);
      bench.AddAll();
      bench.Run(&timings);
    }
  }
  const struct {
    const char* name;
    Data data;
  } others[] = {{"mstopk, Laplace", Data::kLaplace},
                {"mstopk, lognormal", Data::kLognormal},
                {"mstopk, clipped normal", Data::kClipped},
                {"mstopk, zeros", Data::kZeros}};
  for (const auto& [name, data] : others) {
    for (const int64_t share : {1000, 100}) {
      Bench bench(1 << 27, (1 << 27) / share, data);
      bench.AddOurs(name);
      bench.Run(&timings);
    }
  }
  return timings;
}

}  // namespace mstopk
