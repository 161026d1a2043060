#include "custom_ops/entries/entries.h"

#include <algorithm>
#include <cstring>

namespace entries {
namespace {

constexpr int64_t kAhead = 24;  // entries: some 100 ns, as long as memory takes to answer
constexpr uint32_t kExponent = 0x7f800000;

// Calls body(i, index of i) in order; returns the first i whose index is outside.
template <typename Body>
int64_t ForEach(const int32_t* indices, int64_t count, int64_t n, const float* out, Body body) {
  for (int64_t i = 0; i < count; ++i) {
    // An address outside does no harm here.
    __builtin_prefetch(out + indices[std::min(i + kAhead, count - 1)], 1);
    const int64_t index = indices[i];
    if (index < 0 || index >= n) return i;
    body(i, index);
  }
  return kAllInside;
}

bool IsFinite(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits & kExponent) != kExponent;
}

}  // namespace

int64_t Add(const float* values, const int32_t* indices, int64_t count, int64_t n, float* out, bool* finite) {
  bool all = true;
  const int64_t outside = ForEach(indices, count, n, out, [&](int64_t i, int64_t index) {
    out[index] += values[i];
    all &= IsFinite(out[index]);
  });
  if (!all) *finite = false;
  return outside;
}

bool Rise(const int32_t* indices, int64_t rows, int64_t count, int64_t n) {
  if (count == 0) return true;
  bool all = true;
  for (const int32_t* row = indices; row < indices + rows * count; row += count) {
    all &= row[0] >= 0 && row[count - 1] < n;
    for (int64_t i = 1; i < count; ++i) all &= row[i - 1] <= row[i];
  }
  return all;
}

void SumBlock(const float* values, const int32_t* indices, int64_t rows, int64_t count, int64_t begin,
              int64_t end, float* out, bool* finite) {
  std::fill(out + begin, out + end, 0.0f);
  bool all = true;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* const own = indices + row * count;
    for (int64_t i = std::lower_bound(own, own + count, begin) - own; i < count && own[i] < end; ++i) {
      float& sum = out[own[i]];
      sum += values[row * count + i];
      all &= IsFinite(sum);
    }
  }
  if (!all) *finite = false;
}

int64_t Replace(const float* values, bool same, const int32_t* indices, int64_t count, int64_t n, float* out) {
  return ForEach(indices, count, n, out,
                 [&](int64_t i, int64_t index) { out[index] = values[same ? 0 : i]; });
}

}  // namespace entries
