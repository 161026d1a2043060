// Inputs of which a selection on the GPU samples what is unlike the rest, for tests.

#ifndef CUSTOM_OPS_MSTOPK_GPU_MISLEADING_INPUTS_H_
#define CUSTOM_OPS_MSTOPK_GPU_MISLEADING_INPUTS_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/mstopk/gpu/plan.h"
#include "custom_ops/mstopk/key.h"

namespace mstopk {
namespace gpu {

struct MisleadingInput {
  std::string name;
  std::vector<uint32_t> x;  // float32
};

// n elements, of which a plan looks at `samples` beforehand.
inline std::vector<MisleadingInput> MisleadingInputs(uint32_t n, uint32_t samples,
                                                     std::mt19937_64& random) {
  std::vector<bool> sampled(n);
  const uint32_t pieces = samples / kSamplePiece;
  for (uint32_t p = 0; p < pieces; ++p) {
    const uint32_t begin = SampleBegin(p, pieces, n);
    std::fill_n(sampled.begin() + begin, kSamplePiece, true);
  }
  std::vector<MisleadingInput> inputs;
  for (const bool seen_is_large : {false, true}) {
    std::vector<uint32_t> spread(n), tied(n), narrow(n);
    for (uint32_t i = 0; i < n; ++i) {
      const bool large = sampled[i] == seen_is_large;
      spread[i] =
          BitsFromFloat(std::normal_distribution<float>()(random) + (large ? 100.0f : 0.0f));
      tied[i] = BitsFromFloat(large ? 3.0f : 1.0f);
      narrow[i] = large ? BitsFromFloat(2.0f) : BitsFromFloat(1.0f) + i % 400;
    }
    inputs.push_back({"misleading, spread", spread});
    inputs.push_back({"misleading, tied", tied});
    inputs.push_back({"misleading, narrow", narrow});
  }
  return inputs;
}

}  // namespace gpu
}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_GPU_MISLEADING_INPUTS_H_
