// The threshold search of the MSTopK paper, for comparison with the exact selection.
//
// Algorithm 1 of Shi et al. (MLSys 2021) bisects [mean |x|, max |x|] `num_samplings` times,
// counting the elements at or above each threshold, and returns all elements above the upper end of
// the final bracket plus a random run of those inside it. The path of the bisection depends only on
// where the (k+1)-th magnitude lies, so one exact selection replaces the counting passes: 3 to 5
// reads instead of num_samplings + 4. Two deviations make it total: the run starts at the lowest index,
// not at a random one, and exactly k elements are returned for every input (a non-finite mean or
// maximum, where the paper's search cannot start, gives the exact selection).

#ifndef CUSTOM_OPS_MSTOPK_PAPER_SEARCH_H_
#define CUSTOM_OPS_MSTOPK_PAPER_SEARCH_H_

#include <cstdint>

#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

// As TopK (mstopk.h), selecting by the bracket after `num_samplings` >= 0 bisections.
// Thresholds are float32 whatever the format.
template <typename Format, typename Index>
int PaperTopK(const typename Format::Bits* x, int64_t n, int64_t k, int64_t num_samplings,
              const Runtime& runtime, typename Format::Bits* values, Index* indices);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_PAPER_SEARCH_H_
