// Histogram, then std::nth_element inside the one bin that holds the answer; without the histogram where
// elements are few.

#include "custom_ops/mstopk/rank.h"

#include <algorithm>
#include <array>
#include <functional>

namespace mstopk {
namespace {

constexpr int64_t kFew = 4096;  // elements, whose histograms would cost more than they save
constexpr uint32_t kBins = 1024;
constexpr int64_t kStripes = 16;         // at most: bounds the memory and the serial sum of histograms
constexpr int64_t kPerStripe = 1 << 15;  // elements, which take longer than a histogram to clear

// Bins of equal width over a range of keys, and one more for the keys above it.
struct Binning {
  KeyRange range;
  int shift;

  explicit Binning(KeyRange keys) : range(keys), shift(0) {
    while (((range.high - range.low) >> shift) >= kBins) ++shift;
  }
  uint32_t BinOf(uint32_t key) const { return std::min((key - range.low) >> shift, kBins); }
  KeyRange KeysOf(uint32_t bin) const {
    const uint32_t low = range.low + (bin << shift);
    return {low, bin == kBins ? KeyTraits<uint32_t>::kMax : low + ((1u << shift) - 1)};
  }
};

// Most keys may fall into one bin: elements take turns at a few tables, since increments of one
// counter have to wait for each other. 32 bits suffice: a stripe has fewer than 2^32 elements.
constexpr int64_t kTables = 4;
using Histogram = std::array<std::array<uint32_t, kBins + 1>, kTables>;

// Appends the keys of a span that are in `range`. Few are: whether any of a group is takes no branch per element.
template <typename Bits>
void AppendKeysIn(KeyRange range, const Span<Bits>& span, std::vector<uint32_t>* keys) {
  constexpr int64_t kGroup = 64;
  const auto is_in = [range](Bits bits) { return KeyOf(bits) - range.low <= range.high - range.low; };
  for (int64_t begin = 0; begin < span.size; begin += kGroup) {
    const int64_t end = std::min(span.size, begin + kGroup);
    uint32_t any = 0;
    for (int64_t i = begin; i < end; ++i) any |= is_in(span.data[i]);
    if (any == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (is_in(span.data[i])) keys->push_back(KeyOf(span.data[i]));
    }
  }
}

}  // namespace

template <typename Bits>
uint32_t KthLargestKey(const std::vector<Span<Bits>>& spans, int64_t k, KeyRange range,
                       const ParallelFor& parallel_for) {
  const int64_t count = spans.size();
  int64_t elements = 0;
  for (const Span<Bits>& span : spans) elements += span.size;
  if (elements <= kFew) {
    std::vector<uint32_t> keys;
    keys.reserve(elements);
    for (const Span<Bits>& span : spans) {
      for (int64_t i = 0; i < span.size; ++i) keys.push_back(KeyOf(span.data[i]));
    }
    std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<>());
    return keys[k - 1];
  }

  const Binning binning(range);
  const int64_t stripes = std::min({count, kStripes, (elements + kPerStripe - 1) / kPerStripe});
  const auto for_each_span = [&](int64_t stripe, auto&& visit) {
    for (int64_t s = stripe * count / stripes; s < (stripe + 1) * count / stripes; ++s) visit(spans[s]);
  };

  std::vector<Histogram> histograms(stripes);
  parallel_for(stripes, [&](int64_t stripe) {
    Histogram& histogram = histograms[stripe];
    for_each_span(stripe, [&](const Span<Bits>& span) {
      for (int64_t i = 0; i < span.size; ++i) {
        ++histogram[i % kTables][binning.BinOf(KeyOf(span.data[i]))];
      }
    });
    for (int64_t table = 1; table < kTables; ++table) {
      for (uint32_t bin = 0; bin <= kBins; ++bin) histogram[0][bin] += histogram[table][bin];
    }
  });

  int64_t rank = k;  // among the elements of the crossing bin, once the bins above are passed
  uint32_t crossing = kBins;
  int64_t in_bin = 0;
  for (;; --crossing) {
    in_bin = 0;
    for (const Histogram& histogram : histograms) in_bin += histogram[0][crossing];
    if (rank <= in_bin) break;
    rank -= in_bin;
  }
  if (binning.shift == 0 && crossing != kBins) return range.low + crossing;
  const KeyRange bin = binning.KeysOf(crossing);

  std::vector<std::vector<uint32_t>> members(stripes);
  parallel_for(stripes, [&](int64_t stripe) {
    members[stripe].reserve(histograms[stripe][0][crossing]);
    for_each_span(stripe, [&](const Span<Bits>& span) { AppendKeysIn(bin, span, &members[stripe]); });
  });
  members[0].reserve(in_bin);
  for (int64_t stripe = 1; stripe < stripes; ++stripe) {
    members[0].insert(members[0].end(), members[stripe].begin(), members[stripe].end());
  }
  const auto kth = members[0].begin() + (rank - 1);
  std::nth_element(members[0].begin(), kth, members[0].end(), std::greater<>());
  return *kth;
}

template uint32_t KthLargestKey(const std::vector<Span<uint32_t>>&, int64_t, KeyRange,
                                const ParallelFor&);
template uint32_t KthLargestKey(const std::vector<Span<uint16_t>>&, int64_t, KeyRange,
                                const ParallelFor&);

}  // namespace mstopk
