// The scan loops, written once. A file of one instruction set defines, before including this file,
//   MSTOPK_TARGET      the function attribute that allows its instructions (may be empty),
//   MSTOPK_NAMESPACE   a namespace of its own, so that no two sets share a symbol,
// and in that namespace functions over tiles of 64 elements that the loops call:
//   MaskAtLeast        one bit for each element with a key of at least a bound,
//   AccumulateTile     the same of residual + grad, which goes to `tile`, and to `out` with zeros for
//                      keys of at least zero_from,
//   FenceStores        waits for stores that went past the caches.
// No include guard is needed: each translation unit includes it once.

#include <cstdint>

#include "custom_ops/mstopk/scan.h"

namespace mstopk {
namespace MSTOPK_NAMESPACE {

constexpr int64_t kTile = 64;
constexpr int64_t kGroup = 64;      // tiles; their elements stay in the first cache
constexpr int64_t kSumsGroup = 16;  // the same of sums, which are copied for it

// Appends the elements of a tile that `mask` marks. Two are written unconditionally: with at most a
// few percent admitted that covers nearly every tile without a branch that cannot be predicted.
template <typename Bits>
MSTOPK_TARGET inline int64_t AppendMasked(const Bits* tile, uint64_t mask, uint32_t first_offset,
                                          Bits* bits, uint32_t* offsets) {
  const int64_t count = __builtin_popcountll(mask);
  int64_t written = 0;
  do {
    for (int unrolled = 0; unrolled < 2; ++unrolled, ++written) {
      const uint32_t position = mask == 0 ? 0 : __builtin_ctzll(mask);
      bits[written] = tile[position];
      offsets[written] = first_offset + position;
      mask &= mask - 1;
    }
  } while (__builtin_expect(mask != 0, 0));
  return count;
}

// Looks at a group of tiles, then at those of them that have candidates: whether a tile has any is
// close to random, so that a branch on it would often be mispredicted.
template <typename Bits>
MSTOPK_TARGET int64_t CollectTiles(const Bits* x, int64_t n, uint32_t floor, uint32_t first_offset,
                                   Bits* bits, uint32_t* offsets) {
  uint64_t masks[kGroup];
  int64_t begins[kGroup];
  int64_t count = 0;
  int64_t i = 0;
  while (i + kTile <= n) {
    int64_t marked = 0;
    for (int64_t tile = 0; tile < kGroup && i + kTile <= n; ++tile, i += kTile) {
      masks[marked] = MaskAtLeast(x + i, floor);
      begins[marked] = i;
      marked += masks[marked] != 0;
    }
    for (int64_t m = 0; m < marked; ++m) {
      count += AppendMasked(x + begins[m], masks[m], first_offset + begins[m], bits + count,
                            offsets + count);
    }
  }
  for (; i < n; ++i) {
    if (KeyOf(x[i]) < floor) continue;
    bits[count] = x[i];
    offsets[count++] = first_offset + i;
  }
  return count;
}

template <bool kPastCaches, typename Format>
MSTOPK_TARGET int64_t AccumulateTilesTo(const typename Format::Bits* grad, const uint32_t* residual,
                                        int64_t n, uint32_t floor, uint32_t zero_from,
                                        uint32_t first_offset, uint32_t* out, uint32_t* bits,
                                        uint32_t* offsets, bool* non_finite) {
  alignas(64) uint32_t tiles[kSumsGroup * kTile];
  uint64_t masks[kSumsGroup];
  int64_t begins[kSumsGroup];
  int64_t count = 0;
  uint64_t non_finite_mask = 0;
  int64_t i = 0;
  while (i + kTile <= n) {
    int64_t marked = 0;
    for (int64_t tile = 0; tile < kSumsGroup && i + kTile <= n; ++tile, i += kTile) {
      non_finite_mask |= MaskAtLeast(grad + i, Format::kInfinity);
      masks[marked] = AccumulateTile<kPastCaches>(Format(), grad + i, residual + i, floor, zero_from,
                                                  out + i, tiles + marked * kTile);
      begins[marked] = i;
      marked += masks[marked] != 0;
    }
    for (int64_t m = 0; m < marked; ++m) {
      count += AppendMasked(tiles + m * kTile, masks[m], first_offset + begins[m], bits + count,
                            offsets + count);
    }
  }
  for (; i < n; ++i) {
    non_finite_mask |= KeyOf(grad[i]) >= Format::kInfinity;
    const uint32_t acc = BitsFromFloat(FloatFromBits(residual[i]) + Format::ToFloat(grad[i]));
    out[i] = KeyOf(acc) >= zero_from ? 0 : acc;
    if (KeyOf(acc) < floor) continue;
    bits[count] = acc;
    offsets[count++] = first_offset + i;
  }
  if (kPastCaches) FenceStores();
  if (non_finite_mask != 0) *non_finite = true;
  return count;
}

template <typename Format>
int64_t AccumulateTiles(const typename Format::Bits* grad, const uint32_t* residual, int64_t n,
                        uint32_t floor, uint32_t zero_from, uint32_t first_offset, uint32_t* out,
                        uint32_t* bits, uint32_t* offsets, bool* non_finite) {
  const bool in_place = out == residual || static_cast<const void*>(out) == grad;
  const bool past_caches = !in_place && reinterpret_cast<uintptr_t>(out) % 64 == 0;
  const auto accumulate =
      past_caches ? AccumulateTilesTo<true, Format> : AccumulateTilesTo<false, Format>;
  return accumulate(grad, residual, n, floor, zero_from, first_offset, out, bits, offsets,
                    non_finite);
}

constexpr ScanKernels MakeKernels(const char* name) {
  return {name,
          CollectTiles<uint32_t>,
          CollectTiles<uint16_t>,
          AccumulateTiles<Float32>,
          AccumulateTiles<Float16>,
          AccumulateTiles<BFloat16>};
}

}  // namespace MSTOPK_NAMESPACE
}  // namespace mstopk
