// Blocks of all segments are one list of work; their sums are added in order afterwards.

#include "custom_ops/segmented_norms/segmented_norms.h"

#include <algorithm>

namespace segmented_norms {

template <typename T>
void SegmentedNorms(const std::vector<Segment<T>>& segments, SumBlockFn<T> sum_block,
                    const ParallelFor& parallel_for, double* sums) {
  // Block b belongs to the last segment whose first block is at most b.
  std::vector<int64_t> first_block;
  int64_t blocks = 0;
  for (const Segment<T>& segment : segments) {
    first_block.push_back(blocks);
    blocks += (segment.size + kBlockElements - 1) / kBlockElements;
  }
  std::vector<Sums> partial(blocks);
  parallel_for(blocks, [&](int64_t block) {
    const int64_t s =
        std::upper_bound(first_block.begin(), first_block.end(), block) - first_block.begin() - 1;
    const Segment<T>& segment = segments[s];
    const int64_t begin = (block - first_block[s]) * kBlockElements;
    const int64_t size = std::min(kBlockElements, segment.size - begin);
    partial[block] = sum_block(segment.w + begin, segment.x + begin, size, segment.c);
  });
  first_block.push_back(blocks);
  for (size_t s = 0; s < segments.size(); ++s) {
    double w = 0;
    double x = 0;
    for (int64_t block = first_block[s]; block < first_block[s + 1]; ++block) {
      w += partial[block].w;
      x += partial[block].x;
    }
    sums[2 * s] = w;
    sums[2 * s + 1] = x;
  }
}

template void SegmentedNorms(const std::vector<Segment<float>>&, SumBlockFn<float>,
                             const ParallelFor&, double*);
template void SegmentedNorms(const std::vector<Segment<double>>&, SumBlockFn<double>,
                             const ParallelFor&, double*);

}  // namespace segmented_norms
