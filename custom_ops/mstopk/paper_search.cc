// Closed-form replay of the paper's bisection.

#include "custom_ops/mstopk/paper_search.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "custom_ops/mstopk/candidates.h"
#include "custom_ops/mstopk/denormals.h"
#include "custom_ops/mstopk/mstopk.h"

namespace mstopk {
namespace {

struct Moments {
  double sum = 0;
  float max = 0;
};

// Sum and maximum of |x|, summed in double per block and in block order: same for any threads.
template <typename Format>
Moments MagnitudeMoments(const typename Format::Bits* x, int64_t n,
                         const ParallelFor& parallel_for) {
  using Bits = typename Format::Bits;
  std::vector<Moments> parts((n + kBlockElements - 1) / kBlockElements);
  parallel_for(parts.size(), [&](int64_t b) {
    const ScopedDenormals denormals;
    const int64_t end = std::min(n, (b + 1) * kBlockElements);
    for (int64_t i = b * kBlockElements; i < end; ++i) {
      const float magnitude = Format::ToFloat(static_cast<Bits>(KeyOf(x[i])));
      parts[b].sum += magnitude;
      parts[b].max = std::max(parts[b].max, magnitude);
    }
  });
  Moments total;
  for (const Moments& part : parts) {
    total.sum += part.sum;
    total.max = std::max(total.max, part.max);
  }
  return total;
}

// The smallest key whose magnitude is at least `threshold`.
template <typename Format>
uint32_t KeyAtLeast(float threshold) {
  uint32_t low = 0;
  uint32_t high = Format::kInfinity;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (Format::ToFloat(static_cast<typename Format::Bits>(middle)) >= threshold) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

template <typename Format, typename Index>
int PaperTopK(const typename Format::Bits* x, int64_t n, int64_t k, int64_t num_samplings,
              const Runtime& runtime, typename Format::Bits* values, Index* indices) {
  using Bits = typename Format::Bits;
  if (k == 0 || k == n) return TopK(x, n, k, runtime, values, indices);
  const ScopedDenormals denormals;
  const Moments moments = MagnitudeMoments<Format>(x, n, runtime.parallel_for);
  const float mean = static_cast<float>(moments.sum / n);
  if (!std::isfinite(moments.sum)) return 1 + TopK(x, n, k, runtime, values, indices);

  std::vector<Bits> largest(k + 1);
  std::vector<Index> positions(k + 1);
  int reads = 1 + TopK(x, n, k + 1, runtime, largest.data(), positions.data());
  uint32_t next = KeyTraits<Bits>::kMax;  // key of the (k+1)-th largest
  for (const Bits bits : largest) next = std::min(next, KeyOf(bits));

  uint32_t certain = KeyTraits<Bits>::kMax + 1;  // the paper's thres1: at most k elements reach it
  uint32_t floor = 0;                            // thres2: more than k elements reach it
  float left = 0;
  float right = 1;
  float last = 0;  // between neighbours every further step would be the same
  for (int64_t step = 0; step < num_samplings; ++step) {
    const float ratio = left + (right - left) / 2;
    if (ratio == last) break;
    last = ratio;
    const uint32_t key = KeyAtLeast<Format>(mean + ratio * (moments.max - mean));
    if (key > next) {  // at most k elements reach it
      right = ratio;
      certain = std::min(certain, key);
    } else {
      left = ratio;
      floor = std::max(floor, key);
    }
  }

  const AdmissionRule rule = {floor, certain, k, kUnlimited, 2.0 * k};
  const CollectFn<Bits> collect = CollectKernel<Bits>(runtime.kernels);
  const Candidates<Bits> candidates = CollectCandidates<Bits>(
      n, rule, false,
      [=](int64_t begin, int64_t count, uint32_t at_least, uint32_t first_offset, Bits* bits,
          uint32_t* offsets) {
        return collect(x + begin, count, at_least, first_offset, bits, offsets);
      },
      runtime.parallel_for);
  EmitWinners(candidates, floor, certain, k, runtime.parallel_for, values, indices);
  return reads + 1;
}

#define MSTOPK_INSTANTIATE(Format, Index)                                               \
  template int PaperTopK<Format, Index>(const Format::Bits*, int64_t, int64_t, int64_t, \
                                        const Runtime&, Format::Bits*, Index*)
MSTOPK_INSTANTIATE(Float32, int32_t);
MSTOPK_INSTANTIATE(Float32, int64_t);
MSTOPK_INSTANTIATE(Float16, int32_t);
MSTOPK_INSTANTIATE(Float16, int64_t);
MSTOPK_INSTANTIATE(BFloat16, int32_t);
MSTOPK_INSTANTIATE(BFloat16, int64_t);
#undef MSTOPK_INSTANTIATE

}  // namespace mstopk
