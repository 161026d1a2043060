// The fused pass, its fallback on the stored sums, and the zeroing of the winners.

#include "custom_ops/mstopk/error_feedback.h"

#include <algorithm>
#include <atomic>
#include <memory>

#include "custom_ops/mstopk/admission.h"
#include "custom_ops/mstopk/denormals.h"
#include "custom_ops/mstopk/mstopk.h"

namespace mstopk {
namespace {

template <typename Format>
bool AllFinite(const typename Format::Bits* grad, int64_t n, const Runtime& runtime) {
  const auto collect = CollectKernel<typename Format::Bits>(runtime.kernels);
  std::atomic<bool> finite{true};
  runtime.parallel_for((n + kBlockElements - 1) / kBlockElements, [&](int64_t b) {
    constexpr int64_t kPiece = 1024;
    typename Format::Bits bits[kPiece + kScanSlack];
    uint32_t offsets[kPiece + kScanSlack];
    const int64_t end = std::min(n, (b + 1) * kBlockElements);
    for (int64_t i = b * kBlockElements; i < end && finite.load(std::memory_order_relaxed);
         i += kPiece) {
      const int64_t count = std::min(kPiece, end - i);
      if (collect(grad + i, count, Format::kInfinity, 0, bits, offsets) > 0) finite.store(false);
    }
  });
  return finite.load();
}

constexpr uint32_t kNothing = KeyTraits<uint32_t>::kMax + 1;  // no key is as large

struct Accumulated {
  bool finite;           // whether grad is
  uint32_t zeroed_from;  // winners with smaller keys are not yet zero in acc
};

// Writes back candidates with keys in [from, to], which the pass has stored as zeros.
void Restore(const Candidates<uint32_t>& candidates, uint32_t from, uint32_t to,
             const ParallelFor& parallel_for, uint32_t* acc) {
  parallel_for(candidates.blocks.size(), [&](int64_t b) {
    const CandidateBlock<uint32_t>& block = candidates.blocks[b];
    for (int64_t i = 0; i < block.size(); ++i) {
      const uint32_t key = KeyOf(block.bits()[i]);
      if (key < from || key > to) continue;
      acc[b * kBlockElements + block.offsets()[i]] = block.bits()[i];
    }
  });
}

// acc = residual + grad, and its top k. The pass already stores zeros where the sample says that an
// element probably wins: coming back to each winner later costs a cache line both ways, and so does
// coming back to one that did not win, of which there are few.
template <typename Format, typename Index>
Accumulated AccumulateTopK(const typename Format::Bits* grad, const uint32_t* residual, int64_t n,
                           int64_t k, const Runtime& runtime, uint32_t* acc, uint32_t* values,
                           Index* indices) {
  Guess guess = {{kNothing, kNothing}, 0, 0, kNothing};
  if (k > 0) {
    const auto load = [&](const int64_t* positions, int64_t count, uint32_t* keys) {
      const ScopedDenormals denormals;
      PrefetchPieces(residual, positions, count);
      PrefetchPieces(grad, positions, count);
      const auto key_of_sum = [&](int64_t i) {
        return KeyOf(BitsFromFloat(FloatFromBits(residual[i]) + Format::ToFloat(grad[i])));
      };
      KeysOfPieces(positions, count, key_of_sum, keys);
    };
    guess = SampleBracket(n, k, KeyTraits<uint32_t>::kMax, load, runtime.parallel_for);
  }
  AdmissionRule rule = RuleFor(guess, n, k);
  if (!Promising(rule)) rule = AdmissionRule::AtLeast(kNothing);
  const uint32_t zero_from = std::min(kNothing, std::max(guess.likely + 1, rule.certain));

  const auto accumulate = AccumulateKernel<Format>(runtime.kernels);
  std::atomic<bool> non_finite{false};
  const Candidates<uint32_t> candidates = CollectCandidates<uint32_t>(
      n, rule, true,
      [&](int64_t begin, int64_t count, uint32_t floor, uint32_t first_offset, uint32_t* bits,
          uint32_t* offsets) {
        const ScopedDenormals denormals;
        bool found = false;
        const int64_t collected =
            accumulate(grad + begin, residual + begin, count, floor, std::max(floor, zero_from),
                       first_offset, acc + begin, bits, offsets, &found);
        if (found) non_finite.store(true);
        return collected;
      },
      runtime.parallel_for);

  if (!candidates.complete || candidates.Size() < k) {
    Restore(candidates, zero_from, kNothing, runtime.parallel_for, acc);
    TopKByHistogram(acc, n, k, runtime, values, indices);
    return {!non_finite.load(), kNothing};
  }
  if (k == 0) return {!non_finite.load(), kNothing};
  const uint32_t kth = EmitTopK(candidates, k, guess.range, runtime.parallel_for, values, indices);
  if (kth < zero_from) return {!non_finite.load(), zero_from};
  Restore(candidates, zero_from, kth, runtime.parallel_for, acc);
  return {!non_finite.load(), kth + 1};  // of those that tie with the k-th some win
}

// Writes zeros to `acc` for the winners with keys below `below`. They are far from each other: their
// cache lines are asked for before the first is written, or each store would wait for its own.
template <typename Index>
void ZeroWinners(const uint32_t* values, const Index* indices, int64_t k, uint32_t below,
                 const ParallelFor& parallel_for, uint32_t* acc) {
  constexpr int64_t kBatch = 64;       // lines on their way at once
  constexpr int64_t kShare = 1 << 14;  // winners that take longer than a thread to wake
  parallel_for((k + kShare - 1) / kShare, [&](int64_t share) {
    const int64_t end = std::min(k, (share + 1) * kShare);
    Index places[kBatch];
    for (int64_t i = share * kShare; i < end;) {
      int64_t count = 0;
      for (const int64_t stop = std::min(end, i + kBatch); i < stop; ++i) {
        places[count] = indices[i];
        count += KeyOf(values[i]) < below;
      }
      for (int64_t j = 0; j < count; ++j) __builtin_prefetch(acc + places[j], 1);
      for (int64_t j = 0; j < count; ++j) acc[places[j]] = 0;
    }
  });
}

}  // namespace

template <typename Format, typename Index>
bool ErrorFeedbackTopK(const typename Format::Bits* grad, const uint32_t* residual, int64_t n,
                       int64_t k, const Runtime& runtime, uint32_t* new_residual, uint32_t* values,
                       Index* indices) {
  const bool in_place = new_residual == residual;
  if (in_place && !AllFinite<Format>(grad, n, runtime)) {
    const std::unique_ptr<uint32_t[]> acc(new uint32_t[n]);  // rare: the step will be skipped
    AccumulateTopK<Format>(grad, residual, n, k, runtime, acc.get(), values, indices);
    return false;
  }
  const Accumulated accumulated =
      AccumulateTopK<Format>(grad, residual, n, k, runtime, new_residual, values, indices);
  if (!accumulated.finite) {
    std::copy_n(residual, n, new_residual);
    return false;
  }
  ZeroWinners(values, indices, k, accumulated.zeroed_from, runtime.parallel_for, new_residual);
  return true;
}

#define MSTOPK_INSTANTIATE(Format, Index)                                                       \
  template bool ErrorFeedbackTopK<Format, Index>(const Format::Bits*, const uint32_t*, int64_t, \
                                                 int64_t, const Runtime&, uint32_t*, uint32_t*, \
                                                 Index*)
MSTOPK_INSTANTIATE(Float32, int32_t);
MSTOPK_INSTANTIATE(Float32, int64_t);
MSTOPK_INSTANTIATE(Float16, int32_t);
MSTOPK_INSTANTIATE(Float16, int64_t);
MSTOPK_INSTANTIATE(BFloat16, int32_t);
MSTOPK_INSTANTIATE(BFloat16, int64_t);
#undef MSTOPK_INSTANTIATE

}  // namespace mstopk
