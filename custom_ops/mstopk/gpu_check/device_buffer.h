// Device memory, error checks and timing for the GPU check.

#ifndef CUSTOM_OPS_MSTOPK_GPU_CHECK_DEVICE_BUFFER_H_
#define CUSTOM_OPS_MSTOPK_GPU_CHECK_DEVICE_BUFFER_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

inline void Check(cudaError_t error, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, cudaGetErrorString(error));
  std::exit(2);
}
#define CHECK_CUDA(call) Check(call, __FILE__, __LINE__)

template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size) : size_(size) {
    CHECK_CUDA(cudaMalloc(&data_, std::max<size_t>(size, 1) * sizeof(T)));
    CHECK_CUDA(cudaMemset(data_, 0xab, size * sizeof(T)));  // what nobody writes shows up
  }
  explicit DeviceBuffer(const std::vector<T>& host) : DeviceBuffer(host.size()) {
    CHECK_CUDA(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> Host() const {
    std::vector<T> host(size_);
    CHECK_CUDA(cudaMemcpy(host.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// Times in microseconds, sorted; each of `samples` is the mean of `repeats` calls in a row, between
// events. The call number is passed so that a call can rotate among buffers.
template <typename Call>
std::vector<double> TimeMicroseconds(int samples, int repeats, Call call) {
  cudaEvent_t start, stop;
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  int number = 0;
  for (int i = 0; i < 3; ++i) call(number++);
  std::vector<double> times;
  for (int sample = 0; sample < samples; ++sample) {
    CHECK_CUDA(cudaEventRecord(start));
    for (int i = 0; i < repeats; ++i) call(number++);
    CHECK_CUDA(cudaEventRecord(stop));
    CHECK_CUDA(cudaEventSynchronize(stop));
    float milliseconds = 0;
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
    times.push_back(1e3 * milliseconds / repeats);
  }
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(stop));
  std::sort(times.begin(), times.end());
  return times;
}

#endif  // CUSTOM_OPS_MSTOPK_GPU_CHECK_DEVICE_BUFFER_H_
