// Sampled single pass, and the histogram that stands in when the sample misled.

#include "custom_ops/mstopk/mstopk.h"

#include <algorithm>
#include <vector>

#include "custom_ops/mstopk/admission.h"

namespace mstopk {
namespace {

constexpr int kDigitBits = 15;  // all of a 16-bit key; exponent and 7 mantissa bits of float32
constexpr int64_t kStripes = 16;

template <typename Bits>
ScanRange<Bits> ScanOf(const Bits* x, const Runtime& runtime) {
  const CollectFn<Bits> collect = CollectKernel<Bits>(runtime.kernels);
  return [=](int64_t begin, int64_t count, uint32_t floor, uint32_t first_offset, Bits* bits,
             uint32_t* offsets) {
    return collect(x + begin, count, floor, first_offset, bits, offsets);
  };
}

// How many elements share each leading digit of their keys.
template <typename Bits>
std::vector<int64_t> LeadingDigitHistogram(const Bits* x, int64_t n,
                                           const ParallelFor& parallel_for) {
  constexpr int shift = KeyTraits<Bits>::kBits - kDigitBits;
  std::vector<std::vector<int64_t>> histograms(kStripes);
  parallel_for(kStripes, [&](int64_t stripe) {
    histograms[stripe].resize(1 << kDigitBits);
    int64_t* const histogram = histograms[stripe].data();
    const int64_t end = (stripe + 1) * n / kStripes;
    for (int64_t i = stripe * n / kStripes; i < end; ++i) ++histogram[KeyOf(x[i]) >> shift];
  });
  for (int64_t stripe = 1; stripe < kStripes; ++stripe) {
    for (int64_t digit = 0; digit < 1 << kDigitBits; ++digit) {
      histograms[0][digit] += histograms[stripe][digit];
    }
  }
  return std::move(histograms[0]);
}

}  // namespace

template <typename Bits, typename Index>
int TopKByHistogram(const Bits* x, int64_t n, int64_t k, const Runtime& runtime, Bits* values,
                    Index* indices) {
  const std::vector<int64_t> histogram = LeadingDigitHistogram(x, n, runtime.parallel_for);
  uint32_t digit = (1 << kDigitBits) - 1;
  int64_t at_least = histogram[digit];
  while (at_least < k) at_least += histogram[--digit];

  constexpr int shift = KeyTraits<Bits>::kBits - kDigitBits;
  AdmissionRule rule = AdmissionRule::AtLeast(digit << shift);
  rule.expected = static_cast<double>(at_least);
  if (shift == 0) {  // the digit is the whole key: all of its elements tie
    rule.certain = rule.floor + 1;
    rule.tie_quota = k - (at_least - histogram[digit]);
  }
  const Candidates<Bits> candidates =
      CollectCandidates(n, rule, false, ScanOf(x, runtime), runtime.parallel_for);
  const KeyRange range = {rule.floor, rule.floor + ((1u << shift) - 1)};
  EmitTopK(candidates, k, range, runtime.parallel_for, values, indices);
  return 2;
}

template <typename Bits, typename Index>
int TopK(const Bits* x, int64_t n, int64_t k, const Runtime& runtime, Bits* values,
         Index* indices) {
  if (k == 0) return 0;
  const auto load = [&](const int64_t* positions, int64_t count, uint32_t* keys) {
    PrefetchPieces(x, positions, count);
    KeysOfPieces(positions, count, [&](int64_t i) { return KeyOf(x[i]); }, keys);
  };
  const Guess guess = SampleBracket(n, k, KeyTraits<Bits>::kMax, load, runtime.parallel_for);
  const AdmissionRule rule = RuleFor(guess, n, k);
  if (!Promising(rule)) return TopKByHistogram(x, n, k, runtime, values, indices);

  const Candidates<Bits> candidates =
      CollectCandidates(n, rule, false, ScanOf(x, runtime), runtime.parallel_for);
  if (!candidates.complete || candidates.Size() < k) {
    return 1 + TopKByHistogram(x, n, k, runtime, values, indices);
  }
  EmitTopK(candidates, k, guess.range, runtime.parallel_for, values, indices);
  return 1;
}

template <typename Bits, typename Index>
void SortByMagnitude(int64_t k, Bits* values, Index* indices) {
  struct Winner {
    Bits value;
    Index index;
  };
  std::vector<Winner> winners(k);
  for (int64_t i = 0; i < k; ++i) winners[i] = {values[i], indices[i]};
  std::sort(winners.begin(), winners.end(), [](const Winner& a, const Winner& b) {
    if (KeyOf(a.value) != KeyOf(b.value)) return KeyOf(a.value) > KeyOf(b.value);
    return a.index < b.index;
  });
  for (int64_t i = 0; i < k; ++i) {
    values[i] = winners[i].value;
    indices[i] = winners[i].index;
  }
}

#define MSTOPK_INSTANTIATE(Bits, Index)                                                       \
  template int TopK(const Bits*, int64_t, int64_t, const Runtime&, Bits*, Index*);            \
  template int TopKByHistogram(const Bits*, int64_t, int64_t, const Runtime&, Bits*, Index*); \
  template void SortByMagnitude(int64_t, Bits*, Index*)
MSTOPK_INSTANTIATE(uint16_t, int32_t);
MSTOPK_INSTANTIATE(uint16_t, int64_t);
MSTOPK_INSTANTIATE(uint32_t, int32_t);
MSTOPK_INSTANTIATE(uint32_t, int64_t);
#undef MSTOPK_INSTANTIATE

}  // namespace mstopk
