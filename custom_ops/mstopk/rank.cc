// Histogram, then std::nth_element inside the one bin that holds the answer.

#include "custom_ops/mstopk/rank.h"

#include <algorithm>
#include <array>
#include <functional>

namespace mstopk {
namespace {

constexpr int kBinBits = 10;
constexpr uint32_t kLastBin = (1u << kBinBits) - 1;
constexpr int64_t kStripes = 16;  // bounds the memory and the serial sum of the histograms

struct Binning {
  uint32_t low;
  int shift;
  uint32_t BinOf(uint32_t key) const { return std::min((key - low) >> shift, kLastBin); }
};

Binning MakeBinning(KeyRange range) {
  int shift = 0;
  while (((range.high - range.low) >> shift) > kLastBin) ++shift;
  return {range.low, shift};
}

}  // namespace

template <typename Bits>
uint32_t KthLargestKey(const std::vector<Span<Bits>>& spans, int64_t k, KeyRange range,
                       const ParallelFor& parallel_for) {
  const Binning binning = MakeBinning(range);
  const int64_t count = spans.size();
  const int64_t stripes = std::min(count, kStripes);
  // Calls visit(key) for every element of a stripe of the spans.
  const auto for_each_key = [&](int64_t stripe, auto&& visit) {
    for (int64_t s = stripe * count / stripes; s < (stripe + 1) * count / stripes; ++s) {
      for (int64_t i = 0; i < spans[s].size; ++i) visit(KeyOf(spans[s].data[i]));
    }
  };

  std::vector<std::array<int64_t, kLastBin + 1>> histograms(stripes);
  parallel_for(stripes, [&](int64_t stripe) {
    auto& histogram = histograms[stripe];
    histogram.fill(0);
    for_each_key(stripe, [&](uint32_t key) { ++histogram[binning.BinOf(key)]; });
  });

  int64_t rank = k;  // among the elements of the crossing bin, once the bins above are passed
  uint32_t crossing = kLastBin;
  for (;; --crossing) {
    int64_t in_bin = 0;
    for (const auto& histogram : histograms) in_bin += histogram[crossing];
    if (rank <= in_bin) break;
    rank -= in_bin;
  }
  if (binning.shift == 0 && crossing != kLastBin) return binning.low + crossing;

  std::vector<std::vector<uint32_t>> members(stripes);
  parallel_for(stripes, [&](int64_t stripe) {
    members[stripe].reserve(histograms[stripe][crossing]);
    for_each_key(stripe, [&](uint32_t key) {
      if (binning.BinOf(key) == crossing) members[stripe].push_back(key);
    });
  });
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
