// GPU results against the CPU's, in every bit, on every adversarial input.

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/mstopk/error_feedback.h"
#include "custom_ops/mstopk/gpu/gpu_top_k.h"
#include "custom_ops/mstopk/gpu/misleading_inputs.h"
#include "custom_ops/mstopk/gpu_check/correctness.h"
#include "custom_ops/mstopk/gpu_check/device_buffer.h"
#include "custom_ops/mstopk/mstopk.h"
#include "custom_ops/mstopk/test_inputs.h"

namespace mstopk {
namespace {

using gpu::GpuTopK;

struct Tally {
  int cases = 0;
  int failures = 0;
  void Count(bool passed, const std::string& what) {
    ++cases;
    if (passed) return;
    ++failures;
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  }
};

template <typename Format>
std::vector<typename Format::Bits> ToBits(const std::vector<float>& x) {
  std::vector<typename Format::Bits> bits(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if constexpr (std::is_same_v<Format, Float32>) {
      bits[i] = BitsFromFloat(x[i]);
    } else if constexpr (std::is_same_v<Format, Float16>) {
      bits[i] = ToFloat16Bits(x[i]);
    } else {
      bits[i] = ToBFloat16Bits(x[i]);
    }
  }
  return bits;
}

template <typename Format, typename Index>
void CheckSelect(const std::vector<typename Format::Bits>& x, int64_t k, int64_t misaligned,
                 const std::string& what, Tally* tally) {
  using Bits = typename Format::Bits;
  const int64_t n = x.size() - misaligned;
  std::vector<Bits> values(k);
  std::vector<Index> indices(k);
  TopK(x.data() + misaligned, n, k, {BestScan(), SerialFor}, values.data(), indices.data());

  const GpuTopK<Format, Index> selector(0);
  CHECK_CUDA(selector.status());
  const DeviceBuffer<Bits> input(x);
  const DeviceBuffer<Bits> device_values(k);
  const DeviceBuffer<Index> device_indices(k);
  const DeviceBuffer<char> workspace(selector.WorkspaceBytes(n, k));
  for (int run = 0; run < 2; ++run) {  // twice in one workspace: nothing may be left over
    CHECK_CUDA(selector.Select(input.data() + misaligned, n, k, workspace.data(),
                               device_values.data(), device_indices.data(), nullptr));
    CHECK_CUDA(cudaDeviceSynchronize());
    tally->Count(device_values.Host() == values && device_indices.Host() == indices,
                 what + " n=" + std::to_string(n) + " k=" + std::to_string(k));
  }
}

template <typename Format, typename Index>
void CheckErrorFeedback(const std::vector<typename Format::Bits>& grad,
                        const std::vector<uint32_t>& residual, int64_t k, const std::string& what,
                        Tally* tally) {
  const int64_t n = grad.size();
  std::vector<uint32_t> kept(n), values(k);
  std::vector<Index> indices(k);
  const bool finite =
      ErrorFeedbackTopK<Format>(grad.data(), residual.data(), n, k, {BestScan(), SerialFor},
                                kept.data(), values.data(), indices.data());

  const GpuTopK<Format, Index> selector(0);
  CHECK_CUDA(selector.status());
  const DeviceBuffer<typename Format::Bits> device_grad(grad);
  const DeviceBuffer<uint32_t> device_residual(residual);
  const DeviceBuffer<uint32_t> device_kept(n);
  const DeviceBuffer<uint32_t> device_values(k);
  const DeviceBuffer<Index> device_indices(k);
  const DeviceBuffer<bool> device_finite(1);
  const DeviceBuffer<char> workspace(selector.WorkspaceBytes(n, k));
  CHECK_CUDA(selector.ErrorFeedback(device_grad.data(), device_residual.data(), n, k,
                                    workspace.data(), device_kept.data(), device_values.data(),
                                    device_indices.data(), device_finite.data(), nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
  bool device_flag = !finite;
  CHECK_CUDA(cudaMemcpy(&device_flag, device_finite.data(), 1, cudaMemcpyDeviceToHost));
  // Which NaN a sum of two NaNs is, processors choose: values are compared where grad is finite.
  const bool same_values = !finite || device_values.Host() == values;
  tally->Count(device_flag == finite && same_values && device_indices.Host() == indices &&
                   device_kept.Host() == kept,
               "error feedback " + what + " n=" + std::to_string(n) + " k=" + std::to_string(k));
}

template <typename Format, typename Index>
void CheckFormat(const std::vector<float>& x, const std::vector<uint32_t>& residual,
                 const std::string& what, Tally* tally) {
  const std::vector<typename Format::Bits> bits = ToBits<Format>(x);
  const int64_t n = bits.size();
  for (const int64_t k : {int64_t{1}, n / 1000 + 1, n / 100 + 1, n / 3 + 1}) {
    if (k > n) continue;
    CheckSelect<Format, Index>(bits, k, 0, what, tally);
    CheckErrorFeedback<Format, Index>(bits, residual, k, what, tally);
  }
  CheckErrorFeedback<Format, Index>(bits, residual, 0, what, tally);
  if (n > 1) CheckSelect<Format, Index>(bits, n / 100 + 1, 1, what + " misaligned", tally);
}

// Long vectors, of which the sample misleads.
void CheckMisleading(Tally* tally) {
  std::mt19937_64 random(31);
  for (const uint32_t n : {1500000u, (1u << 22) + 5}) {
    const std::vector<uint32_t> residual(n);
    size_t bytes = 0;
    const gpu::Plan plan = gpu::MakePlan(n, n / 100, 1, 32, /*on_chip=*/false, nullptr, &bytes);
    for (const gpu::MisleadingInput& input : gpu::MisleadingInputs(n, plan.samples, random)) {
      for (const uint32_t k : {n / 100, n / 20, n - 1, n}) {
        CheckSelect<Float32, int32_t>(input.x, k, 0, input.name, tally);
        CheckErrorFeedback<Float32, int32_t>(input.x, residual, k, input.name, tally);
      }
    }
  }
}

}  // namespace

CorrectnessResult CheckCorrectness() {
  Tally tally;
  std::mt19937_64 random(30);
  for (const int64_t n : {1, 1000, 16384, 100003, 1 << 20, (1 << 20) + 7, (1 << 22) + 5}) {
    std::vector<uint32_t> residual(n);
    for (uint32_t& r : residual) {
      r = BitsFromFloat(std::normal_distribution<float>()(random) * 1e-3f);
    }
    for (const TestInput& input : TestInputs()) {
      const std::vector<float> x = input.make(n, random);
      CheckFormat<Float32, int32_t>(x, residual, input.name + " float32", &tally);
      CheckFormat<Float16, int64_t>(x, residual, input.name + " float16", &tally);
      CheckFormat<BFloat16, int32_t>(x, residual, input.name + " bfloat16", &tally);
    }
    std::printf("n = %lld: %d cases so far, %d failed\n", static_cast<long long>(n), tally.cases,
                tally.failures);
    std::fflush(stdout);
  }
  CheckMisleading(&tally);
  return {tally.cases, tally.failures};
}

}  // namespace mstopk
