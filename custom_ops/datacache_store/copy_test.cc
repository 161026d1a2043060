// Local copies: whole, current, or recognised as neither.

#include "custom_ops/datacache_store/copy.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace datacache {
namespace {

class CopyTest : public ::testing::Test {
 protected:
  CopyTest() {
    char name[] = "/tmp/datacache_copy_XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/copy";
  }
  ~CopyTest() override { std::filesystem::remove_all(directory_); }

  void Write(const std::string& data, uint64_t stamp) {
    CopyWriter writer(path_);
    const size_t half = data.size() / 2;
    ASSERT_TRUE(writer.Append(data.data(), half));
    ASSERT_TRUE(writer.Append(data.data() + half, data.size() - half));
    ASSERT_TRUE(writer.Finish(stamp));
  }
  CopyState Read(uint64_t stamp, int64_t offset = 0, int64_t length = -1) {
    return ReadCopy(path_, stamp, offset, length, &data_);
  }
  int Files() const {
    return std::distance(std::filesystem::directory_iterator(directory_), {});
  }

  std::string directory_, path_, data_;
};

TEST_F(CopyTest, WhatWasWrittenIsRead) {
  for (const std::string& text : {std::string(), std::string("a"), std::string(100000, 'x')}) {
    Write(text, 7);
    EXPECT_EQ(Read(7), CopyState::kGood);
    EXPECT_EQ(data_, text);
    EXPECT_EQ(CheckCopy(path_), CopyState::kGood);
  }
  EXPECT_EQ(Read(7, 5, 10), CopyState::kGood);
  EXPECT_EQ(data_, "xxxxxxxxxx");
  EXPECT_EQ(Files(), 1);
}

TEST_F(CopyTest, OtherStampsAndRanges) {
  EXPECT_EQ(Read(7), CopyState::kAbsent);
  EXPECT_EQ(CheckCopy(path_), CopyState::kAbsent);
  Write("hello", 7);
  EXPECT_EQ(Read(8), CopyState::kOutdated);
  for (const auto& [offset, length] : {std::pair{0, 6}, {5, 1}, {-1, 2}, {6, -1}}) {
    EXPECT_EQ(Read(7, offset, length), CopyState::kDamaged) << offset << " " << length;
  }
  EXPECT_EQ(ReadCopy(path_, 7, 0, -1, &data_, 5), CopyState::kGood);
  EXPECT_EQ(ReadCopy(path_, 7, 0, -1, &data_, 4), CopyState::kDamaged);
}

TEST_F(CopyTest, EveryFlippedByteAndEveryTruncationIsNoticed) {
  Write("hello", 7);
  const int64_t size = std::filesystem::file_size(path_);
  for (int64_t at = 0; at < size; ++at) {
    Write("hello", 7);
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 4));
    file.close();
    EXPECT_NE(Read(7), CopyState::kGood) << at;
    Write("hello", 7);
    ASSERT_EQ(truncate(path_.c_str(), at), 0);
    EXPECT_EQ(Read(7), CopyState::kDamaged) << at;
    EXPECT_EQ(CheckCopy(path_), CopyState::kDamaged) << at;
  }
}

TEST_F(CopyTest, UnfinishedCopiesLeaveNothing) {
  {
    CopyWriter writer(path_);
    EXPECT_TRUE(writer.Append("hello", 5));
  }
  EXPECT_EQ(Files(), 0);
  CopyWriter nowhere(directory_ + "/missing/copy");
  EXPECT_FALSE(nowhere.Append("hello", 5));
  EXPECT_FALSE(nowhere.Finish(1));
}

TEST_F(CopyTest, LinksAreNotFollowed) {
  std::ofstream(directory_ + "/other") << "precious";
  ASSERT_EQ(symlink("other", path_.c_str()), 0);
  EXPECT_EQ(Read(7), CopyState::kAbsent);
  Write("hello", 7);
  EXPECT_EQ(Read(7), CopyState::kGood);
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/other"), 8u);
}

}  // namespace
}  // namespace datacache
