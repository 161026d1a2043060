// gpu_check RESULT.json: checks the GPU kernels against the CPU, then times them.
// Build and run: custom_ops/mstopk/gpu_check/run.sh (needs nvcc, g++ and a GPU).

#include <cstdio>
#include <cub/version.cuh>

#include "custom_ops/mstopk/gpu_check/bench.h"
#include "custom_ops/mstopk/gpu_check/correctness.h"
#include "custom_ops/mstopk/gpu_check/device_buffer.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: gpu_check RESULT.json\n");
    return 2;
  }
  cudaDeviceProp device;
  CHECK_CUDA(cudaGetDeviceProperties(&device, 0));
  const mstopk::CorrectnessResult correctness = mstopk::CheckCorrectness();
  std::printf("%d cases, %d failed\n", correctness.cases, correctness.failures);
  if (correctness.failures != 0) return 1;
  const std::vector<mstopk::Timing> timings = mstopk::RunBenchmarks();

  std::FILE* const file = std::fopen(argv[1], "w");
  if (file == nullptr) {
    std::perror(argv[1]);
    return 2;
  }
  std::fprintf(file,
               "{\n \"device\": \"%s\", \"cuda\": %d, \"cub\": %d,\n"
               " \"cases\": %d, \"failures\": %d, \"data\": \"normal float32, cold\",\n"
               " \"timings\": [",
               device.name, CUDART_VERSION, CUB_VERSION, correctness.cases, correctness.failures);
  const char* separator = "";
  for (const mstopk::Timing& t : timings) {
    std::fprintf(file,
                 "%s\n  {\"what\": \"%s\", \"n\": %lld, \"k\": %lld, \"median_us\": %.2f,"
                 " \"p10_us\": %.2f, \"p90_us\": %.2f}",
                 separator, t.what.c_str(), static_cast<long long>(t.n),
                 static_cast<long long>(t.k), t.median_us, t.p10_us, t.p90_us);
    separator = ",";
  }
  std::fprintf(file, "\n ]\n}\n");
  return std::fclose(file) == 0 ? 0 : 2;
}
