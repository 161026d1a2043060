#include "custom_ops/mstopk/spare_blocks.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace mstopk {
namespace {

using Blocks = std::vector<CandidateBlock<uint32_t>>;

TEST(SpareBlocks, GivesBackTheMemoryButNotTheContent) {
  SpareBlocks<uint32_t> spare;
  Blocks blocks = spare.Take(3);
  ASSERT_EQ(blocks.size(), 3u);
  EXPECT_EQ(blocks[0].Bytes(), 0);
  blocks[0].Reserve(100);
  blocks[0].size = 7;
  const uint32_t* const memory = blocks[0].bits();
  spare.Give(std::move(blocks));

  const Blocks again = spare.Take(5);
  ASSERT_EQ(again.size(), 5u);
  int found = 0;
  for (const auto& block : again) {
    EXPECT_EQ(block.size, 0);
    found += block.bits() == memory;
  }
  EXPECT_EQ(found, 1);
  EXPECT_EQ(spare.Take(1)[0].bits(), nullptr);  // nobody else gets it meanwhile
}

TEST(SpareBlocks, KeepsNoMoreThanItsLimit) {
  SpareBlocks<uint32_t> spare;
  Blocks blocks(3);
  blocks[0].Reserve(kSpareBytes / 8 + 1);  // more than all
  blocks[1].Reserve(kSpareBytes / 16 + 1);
  blocks[2].Reserve(kSpareBytes / 16);  // not beside the other
  spare.Give(std::move(blocks));
  const Blocks kept = spare.Take(3);
  EXPECT_EQ(kept[0].Bytes(), kSpareBytes / 2 + 8);
  EXPECT_EQ(kept[1].Bytes() + kept[2].Bytes(), 0);
}

}  // namespace
}  // namespace mstopk
