// The store against what was put there, with several writers and readers.

#include "custom_ops/datacache_store/store.h"

#include <string>
#include <thread>

#include "custom_ops/datacache_store/crc32c.h"
#include "custom_ops/datacache_store/store_test_help.h"
#include "gtest/gtest.h"

namespace datacache {
namespace {

TEST(Crc32cTest, KnownValues) {
  for (const auto crc : {Crc32c, Crc32cPortable}) {
    EXPECT_EQ(crc(0, "123456789", 9), 0xe3069283u);
    EXPECT_EQ(crc(crc(0, "1234", 4), "56789", 5), 0xe3069283u);
    EXPECT_EQ(crc(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
    EXPECT_EQ(crc(0, "", 0), 0u);
  }
}

TEST(Crc32cTest, TheInstructionAgreesWithTheTable) {
  const std::string data = Sample(3, 10000);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t n = 0; n < 70; ++n) {
      // Short ones, and those of which some parts are computed at once.
      for (const size_t lanes : {0, 1, 2, 3}) {
        const size_t bytes = 3072 * lanes + n;
        EXPECT_EQ(Crc32c(7, &data[begin], bytes), Crc32cPortable(7, &data[begin], bytes));
      }
    }
  }
}

TEST(StoreTest, KeepsSamplesOfAwkwardSizes) {
  for (const int64_t bytes : {1, 63, 64, 65, 4096, 27648}) {
    TemporaryFile file;
    const auto store = Created(file.path, 10, bytes);
    EXPECT_FALSE(HasSample(store.get(), 3));
    for (const int64_t id : {7, 0, 9, 3}) PutSample(store.get(), id);
    for (int64_t id = 0; id < 10; ++id) {
      EXPECT_EQ(HasSample(store.get(), id), id == 7 || id == 0 || id == 9 || id == 3);
    }
    EXPECT_EQ(store->Verify(), 0);
    EXPECT_EQ(store->stats().stored, 4);
    EXPECT_TRUE(HasSample(Opened(file.path).get(), 7));  // another opening, as another process
  }
}

TEST(StoreTest, PiecesAreGathered) {
  TemporaryFile file;
  const auto store = Created(file.path, 2, 70);
  std::string first = "abc", second = "defgh";
  store->Put({1}, {{{first.data(), 0, 3}, {second.data(), 64, 5}}});
  std::string a(3, ' '), b(5, ' ');
  EXPECT_TRUE(store->Get(1, {{b.data(), 64, 5}, {a.data(), 0, 3}}));
  EXPECT_EQ(a + b, "abcdefgh");
}

TEST(StoreTest, TheNextSampleMayBeAnyNumber) {
  TemporaryFile file;
  const auto store = Created(file.path, 3, 9000);
  for (const int64_t id : {1, 2}) PutSample(store.get(), id);
  for (const int64_t next : {int64_t{2}, int64_t{0}, int64_t{-1}, int64_t{3}, INT64_MAX, INT64_MIN}) {
    std::string data(9000, ' ');
    EXPECT_TRUE(store->Get(1, {{data.data(), 0, 9000}}, next));
    EXPECT_EQ(data, Sample(1, 9000));
  }
}

TEST(StoreTest, NumbersOutOfRangeAreAbsent) {
  TemporaryFile file;
  const auto store = Created(file.path, 3, 8);
  for (const int64_t id : {int64_t{-1}, int64_t{3}, INT64_MAX, INT64_MIN}) {
    PutSample(store.get(), id);
    store->Examine(id);
    EXPECT_FALSE(HasSample(store.get(), id));
  }
  EXPECT_EQ(store->stats().stored, 0);
}

TEST(StoreTest, AFullStoreKeepsWhatItHas) {
  TemporaryFile file;
  const auto store = Created(file.path, 10, 100);
  store->SetCapacity(4);
  for (int64_t id = 0; id < 10; ++id) PutSample(store.get(), id);
  for (int64_t id = 0; id < 10; ++id) EXPECT_EQ(HasSample(store.get(), id), id < 4);
  EXPECT_EQ(store->stats().rejected, 6);
  store->SetCapacity(1);  // never below what it holds
  EXPECT_TRUE(HasSample(store.get(), 3));
  store->SetCapacity(6);
  for (int64_t id = 0; id < 10; ++id) PutSample(store.get(), id);
  EXPECT_EQ(store->stats().stored, 6);
}

TEST(StoreTest, ReleasedSamplesGiveTheirSlots) {
  TemporaryFile file;
  const auto store = Created(file.path, 10, 100);
  const auto other = Opened(file.path);  // another process, which has found the store full
  store->SetCapacity(2);
  PutSample(store.get(), 0);
  PutSample(store.get(), 1);
  PutSample(other.get(), 5);
  EXPECT_FALSE(HasSample(store.get(), 5));
  store->Release({0, 7, -1});
  EXPECT_FALSE(HasSample(other.get(), 0));
  PutSample(other.get(), 5);
  EXPECT_TRUE(HasSample(store.get(), 1));
  EXPECT_TRUE(HasSample(store.get(), 5));
  PutSample(store.get(), 6);  // the slot is taken
  EXPECT_FALSE(HasSample(store.get(), 6));
  EXPECT_EQ(store->Verify(), 0);
}

TEST(StoreTest, SamplesOfAnyLength) {
  TemporaryFile file;
  const auto store = Created(file.path, 10, 100);
  int64_t id = 0;
  for (const int64_t bytes : {0, 1, 64, 100}) {
    std::string data = Sample(id, bytes), read = "before";
    store->Put({++id}, {{{data.data(), 0, bytes}}});
    EXPECT_TRUE(store->Get(id, &read));
    EXPECT_EQ(read, data);
  }
  std::string read;
  EXPECT_FALSE(store->Get(9, &read));
  EXPECT_FALSE(store->Get(-1, &read));
}

TEST(StoreTest, ReadersOfReleasedSamplesSeeWholeOnes) {
  TemporaryFile file;
  const auto store = Created(file.path, 40, 20000);
  store->SetCapacity(2);
  PutSample(store.get(), 0);
  std::atomic<bool> stop{false};
  std::atomic<int> found{0};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        for (int64_t id = 0; id < 40; ++id) found += HasSample(store.get(), id);
      }
    });
  }
  for (int round = 0; round < 20 || (found == 0 && round < 10000); ++round) {
    for (int64_t id = 0; id < 40; ++id) {
      store->Release({id});
      PutSample(store.get(), (id + 1) % 40);
    }
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GT(found, 0);
  EXPECT_EQ(store->stats().stored, 1);
}

TEST(StoreTest, SeveralWritersStoreEachSampleOnce) {
  TemporaryFile file;
  const int64_t samples = 200;
  const auto store = Created(file.path, samples, 300);
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&] {
      const auto own = Opened(file.path);
      for (int64_t id = 0; id < samples; ++id) PutSample(own.get(), id);
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(store->Verify(), 0);
  for (int64_t id = 0; id < samples; ++id) EXPECT_TRUE(HasSample(store.get(), id));
}

}  // namespace
}  // namespace datacache
