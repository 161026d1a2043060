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

// Microseconds per call, the mean of `calls` in a row, between events. `call` is given a number to rotate among
// buffers by, from `first` on.
template <typename Call>
double Microseconds(int first, int calls, const Call& call) {
  static cudaEvent_t start = nullptr, stop = nullptr;
  if (start == nullptr) {
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&stop));
  }
  CHECK_CUDA(cudaEventRecord(start));
  for (int i = 0; i < calls; ++i) call(first + i);
  CHECK_CUDA(cudaEventRecord(stop));
  CHECK_CUDA(cudaEventSynchronize(stop));
  float milliseconds = 0;
  CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
  return 1e3 * milliseconds / calls;
}

#endif  // CUSTOM_OPS_MSTOPK_GPU_CHECK_DEVICE_BUFFER_H_
