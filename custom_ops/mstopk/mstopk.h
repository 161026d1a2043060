// MSTopK: the k elements of largest magnitude, for about one read of the input.
//
// Exactly k distinct indices for every input; every element strictly above the k-th magnitude is
// chosen, ties go to the lowest index, NaN ranks above Inf above finite, and one NaN above another
// as their bits do. The result depends on the input alone: not on threads, blocks, instruction set
// or device.
//
// Algorithm. (1) Order statistics of a small deterministic sample give a floor that the k-th
// magnitude very probably exceeds. (2) One pass admits every element at or above the floor, 1.1 to
// 2.3 k of them, more of short inputs and of k/N below 0.1 %. (3) If at least k were admitted the floor was low enough,
// and the exact k-th key comes from the candidates alone. (4) If not, or if far too many were
// admitted, one histogram of the leading key bits finds an exact floor, and one more pass admits
// what it lets through. Hence at most 3 reads of the input beside the sample, and one on all but
// adversarial inputs. After the sampled selection of Floyd and Rivest (1975) and the threshold
// search of MSTopK (Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public
// Cloud Clusters", MLSys 2021, section 3.1); the paper's own search is in paper_search.h.
//
// Time O(n + k); scratch 8 bytes per candidate. Threads: a call uses only `runtime.parallel_for`.

#ifndef CUSTOM_OPS_MSTOPK_MSTOPK_H_
#define CUSTOM_OPS_MSTOPK_MSTOPK_H_

#include <cstdint>

#include "custom_ops/mstopk/runtime.h"

namespace mstopk {

// Writes the bits and indices of the k winners among x[0, n) in ascending index order,
// 0 <= k <= n. Index is int32_t or int64_t. Returns how many times x was read, 0 to 3.
template <typename Bits, typename Index>
int TopK(const Bits* x, int64_t n, int64_t k, const Runtime& runtime, Bits* values, Index* indices);

// As TopK without the sample: a histogram pass and a collecting pass, 2 reads.
template <typename Bits, typename Index>
int TopKByHistogram(const Bits* x, int64_t n, int64_t k, const Runtime& runtime, Bits* values,
                    Index* indices);

// Reorders k winners by falling magnitude, ties by rising index.
template <typename Bits, typename Index>
void SortByMagnitude(int64_t k, Bits* values, Index* indices);

}  // namespace mstopk

#endif  // CUSTOM_OPS_MSTOPK_MSTOPK_H_
