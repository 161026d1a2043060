// Floyd-Rivest style: order statistics of a sample, a few standard deviations either side.

#include "custom_ops/mstopk/sample.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "custom_ops/mstopk/sample_ranks.h"

namespace mstopk {
namespace {

constexpr int64_t kShortest = 1 << 14;  // below this, looking at everything costs about the same
constexpr int64_t kMinSample = 1 << 12;
constexpr int64_t kMaxSample = 1 << 18;
constexpr int64_t kSampleShare = 512;  // n / kSampleShare elements, within the limits above
constexpr int64_t kBatch = 64;         // pieces that are on their way from memory at once
constexpr int64_t kBatches = 16;       // that take longer than a thread to wake
constexpr double kLikelyDeviations = 2;  // where they were too few, what has lost is written back

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The `count` largest keys, in no order. Holds up to twice as many and drops the lesser half at a
// time: soon few keys pass the bound, and a branch that nearly always goes the same way is cheap.
std::vector<uint32_t> Largest(const std::vector<uint32_t>& keys, int64_t count) {
  std::vector<uint32_t> largest(2 * count);
  int64_t size = 0;
  uint32_t bound = 0;  // lesser keys are not among them
  const auto drop = [&] {
    std::nth_element(largest.begin(), largest.begin() + (count - 1), largest.begin() + size,
                     std::greater<>());
    size = count;
    bound = largest[count - 1] + 1;
  };
  for (const uint32_t key : keys) {
    if (key < bound) continue;
    largest[size++] = key;
    if (size == 2 * count) drop();
  }
  drop();
  largest.resize(count);
  return largest;
}

}  // namespace

Guess SampleBracket(int64_t n, int64_t k, uint32_t max_key, const KeyLoader& load,
                    const ParallelFor& parallel_for) {
  const Guess everything = {{0, max_key}, static_cast<double>(n), 0.0, max_key};
  if (n <= kShortest) return everything;

  const int64_t pieces = std::clamp(n / kSampleShare, kMinSample, kMaxSample) / kPiece;
  const int64_t size = pieces * kPiece;
  std::vector<uint32_t> keys(size);
  const double stratum = static_cast<double>(n) / pieces;
  // One piece per stratum, at a jittered place: a fixed stride could beat with layer sizes.
  const auto position = [&](int64_t piece) {
    const int64_t begin = static_cast<int64_t>(piece * stratum);
    const uint64_t room = static_cast<int64_t>((piece + 1) * stratum) - begin - kPiece + 1;
    const int64_t jitter = (Mix(static_cast<uint64_t>(n) + piece) >> 32) * room >> 32;
    return std::max(begin, (begin + jitter) / kPiece * kPiece);
  };
  constexpr int64_t kRun = kBatch * kBatches;
  parallel_for((pieces + kRun - 1) / kRun, [&](int64_t run) {
    int64_t positions[kBatch];
    const int64_t end = std::min(pieces, (run + 1) * kRun);
    for (int64_t first = run * kRun; first < end; first += kBatch) {
      const int64_t count = std::min(kBatch, end - first);
      for (int64_t i = 0; i < count; ++i) positions[i] = position(first + i);
      load(positions, count, keys.data() + first * kPiece);
    }
  });

  const double mean = static_cast<double>(k) * size / n;  // of the sample's share of the top k
  const int64_t low_rank = LowRank(mean);
  if (low_rank >= size) return everything;

  std::vector<uint32_t> top = Largest(keys, low_rank);
  const uint32_t low = top.back();
  const int64_t ties = std::count(keys.begin(), keys.end(), low);
  const int64_t more_ties = ties - std::count(top.begin(), top.end(), low);
  const auto key_of_rank = [&](int64_t rank) {
    const auto key = top.begin() + (std::max<int64_t>(rank, 1) - 1);
    std::nth_element(top.begin(), key, top.end(), std::greater<>());
    return *key;
  };
  const double scale = static_cast<double>(n) / size;
  return {{low, key_of_rank(HighRank(mean))},
          (low_rank + more_ties) * scale,
          ties * scale,
          key_of_rank(HighRank(mean, kLikelyDeviations))};
}

}  // namespace mstopk
