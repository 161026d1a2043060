// Framing of records: taken off where all of it is right.

#include "custom_ops/datacache_store/record.h"

#include <cstring>
#include <string>

#include "custom_ops/datacache_store/crc32c.h"
#include "gtest/gtest.h"

namespace datacache {
namespace {

template <typename Number>
std::string Bytes(Number number) {
  std::string bytes(sizeof(number), 0);
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

std::string WithCrc(const std::string& data) {
  return data + Bytes(MaskedCrc32c(Crc32c(0, data.data(), data.size())));
}

std::string Record(const std::string& data) { return WithCrc(Bytes<uint64_t>(data.size())) + WithCrc(data); }

TEST(RecordTest, HasItsDataWithoutFraming) {
  for (const std::string& data : {std::string(), std::string("x"), std::string(1000, 'a')}) {
    std::string record = Record(data);
    EXPECT_EQ(record.size(), data.size() + kFraming);
    EXPECT_EQ(DataLength(record), static_cast<int64_t>(data.size()));
    EXPECT_TRUE(Unframe(&record));
    EXPECT_EQ(record, data);
  }
}

TEST(RecordTest, AnyOtherBitIsDamage) {
  const std::string right = Record("data");
  for (size_t i = 0; i < 8 * right.size(); ++i) {
    std::string record = right;
    record[i / 8] ^= static_cast<char>(1 << (i % 8));
    const std::string damaged = record;
    EXPECT_FALSE(Unframe(&record)) << "bit " << i;
    EXPECT_EQ(record, damaged);
    EXPECT_EQ(DataLength(record), i < 8 * 12 ? -1 : 4);
  }
}

TEST(RecordTest, AnyOtherLengthIsDamage) {
  const std::string right = Record("data");
  for (size_t n = 0; n < right.size(); ++n) {
    std::string record = right.substr(0, n);
    EXPECT_EQ(DataLength(record), n < 12 ? -1 : 4);
    EXPECT_FALSE(Unframe(&record));
  }
  std::string longer = right + "x";
  EXPECT_FALSE(Unframe(&longer));
}

TEST(RecordTest, LengthsThatOverflowAreNone) {
  for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(DataLength(WithCrc(Bytes(length))), -1);
  }
  EXPECT_EQ(DataLength(WithCrc(Bytes((uint64_t{1} << 63) - 1))), INT64_MAX);
}

}  // namespace
}  // namespace datacache
