// Compares the GPU with the CPU.

#ifndef CUSTOM_OPS_MSTOPK_GPU_CHECK_CORRECTNESS_H_
#define CUSTOM_OPS_MSTOPK_GPU_CHECK_CORRECTNESS_H_

namespace mstopk {

struct CorrectnessResult {
  int cases;
  int failures;
};
CorrectnessResult CheckCorrectness();

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_CHECK_CORRECTNESS_H_
