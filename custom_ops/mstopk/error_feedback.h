// Error feedback fused with the selection: one pass adds, stores and collects.
//
//   acc = residual + grad (float32);  winners = top k of |acc|;  new_residual = acc with the
//   winners set to zero.
// Nothing is lost: winners + new_residual == acc exactly.

#ifndef CUSTOM_OPS_MSTOPK_ERROR_FEEDBACK_H_
#define CUSTOM_OPS_MSTOPK_ERROR_FEEDBACK_H_

#include <cstdint>

#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

// Selects k of n elements, 0 <= k <= n; writes the winners' acc values and their indices,
// ascending. `new_residual` is `grad` itself (float32), `residual` itself, or disjoint from both; it and
// `residual` are float32 bits.
//
// Returns whether every element of grad is finite. If one is not, new_residual equals residual in
// every bit, and the winners are still those of acc (non-finite first), so that every worker that
// receives them sees the overflow. Denormal sums are kept, whatever the calling thread's mode.
//
// Memory traffic: 2 reads and 1 write of n elements, as of residual += grad. Only where new_residual ==
// residual is grad read once more, beforehand: a non-finite element found too late could not be undone.
template <typename Format, typename Index>
bool ErrorFeedbackTopK(const typename Format::Bits* grad, const uint32_t* residual, int64_t n,
                       int64_t k, const Runtime& runtime, uint32_t* new_residual, uint32_t* values,
                       Index* indices);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_ERROR_FEEDBACK_H_
