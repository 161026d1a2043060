// From a guess or a histogram to an admission rule, and from candidates to winners.

#ifndef CUSTOM_OPS_MSTOPK_ADMISSION_H_
#define CUSTOM_OPS_MSTOPK_ADMISSION_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/mstopk/candidates.h"
#include "custom_ops/mstopk/sample.h"

namespace mstopk {

// The rule for one pass after a guess: what the guess admits, within a bound on memory. A floor
// that many elements tie with (zeros, clipped gradients, one constant) keeps only the first k of
// the ties.
inline AdmissionRule RuleFor(const Guess& guess, int64_t n, int64_t k) {
  AdmissionRule rule = AdmissionRule::AtLeast(guess.range.low);
  rule.expected = guess.expected;
  if (guess.expected_ties > static_cast<double>(k + n / 64)) {
    rule.certain = guess.range.low + 1;
    rule.tie_quota = k;
    rule.expected -= guess.expected_ties - k;
  }
  if (guess.range.low > 0) rule.limit = 4 * k + n / 16;
  return rule;
}

// Whether a pass by this rule is worth trying.
inline bool Promising(const AdmissionRule& rule) {
  return rule.expected <= static_cast<double>(rule.limit);
}

// Candidates that one thread ranks and emits before it could wake another four times.
constexpr int64_t kFewCandidates = 1 << 16;

// Writes the k winners of candidates that hold at least the k largest of the whole input. Returns
// the k-th key.
template <typename Bits, typename Index>
uint32_t EmitTopK(const Candidates<Bits>& candidates, int64_t k, KeyRange range,
                  const ParallelFor& parallel_for, Bits* values, Index* indices) {
  const ParallelFor run = candidates.Size() <= kFewCandidates ? ParallelFor(SerialFor) : parallel_for;
  const uint32_t kth = KthLargestKey(candidates.Spans(), k, range, run);
  EmitWinners(candidates, kth, kth + 1, k, run, values, indices);
  return kth;
}

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_ADMISSION_H_
