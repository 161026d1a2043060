// The store against a map in memory, under damage, with several writers, and killed at any instruction.

#include "custom_ops/datacache_store/store.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "custom_ops/datacache_store/crc32c.h"
#include "gtest/gtest.h"

namespace datacache {
namespace {

class TemporaryFile {
 public:
  TemporaryFile() {
    char name[] = "/tmp/datacache_store_XXXXXX";
    directory_ = mkdtemp(name);
    path = directory_ + "/store";
  }
  ~TemporaryFile() {
    unlink(path.c_str());
    rmdir(directory_.c_str());
  }
  std::string path;

 private:
  std::string directory_;
};

std::unique_ptr<Store> Opened(const std::string& path) {
  std::string error;
  std::unique_ptr<Store> store = Store::Open(path, &error);
  EXPECT_NE(store, nullptr) << error;
  return store;
}

std::unique_ptr<Store> Created(const std::string& path, int64_t samples, int64_t bytes) {
  EXPECT_EQ(Store::Create(path, samples, bytes), "");
  std::unique_ptr<Store> store = Opened(path);
  store->SetCapacity(samples);
  return store;
}

std::string Sample(int64_t id, int64_t bytes) {
  std::mt19937 random(id);
  std::string data(bytes, '\0');
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

void PutSample(Store* store, int64_t id, int64_t replaced = -1) {
  std::string data = Sample(id, store->payload_bytes());
  const std::vector<int64_t> replace = replaced < 0 ? std::vector<int64_t>{} : std::vector{replaced};
  store->Put({id}, {{{data.data(), 0, store->payload_bytes()}}}, replace);
}

// Whether the sample is there; fails when it is there and wrong.
bool HasSample(Store* store, int64_t id) {
  std::string data(store->payload_bytes(), 'x');
  if (!store->Get(id, {{data.data(), 0, store->payload_bytes()}})) return false;
  EXPECT_EQ(data, Sample(id, store->payload_bytes())) << "sample " << id;
  return true;
}

TEST(Crc32cTest, KnownValues) {
  for (const auto crc : {Crc32c, Crc32cPortable}) {
    EXPECT_EQ(crc(0, "123456789", 9), 0xe3069283u);
    EXPECT_EQ(crc(crc(0, "1234", 4), "56789", 5), 0xe3069283u);
    EXPECT_EQ(crc(0, std::string(32, '\0').data(), 32), 0x8a9136aau);
    EXPECT_EQ(crc(0, "", 0), 0u);
  }
}

TEST(Crc32cTest, TheInstructionAgreesWithTheTable) {
  const std::string data = Sample(3, 1000);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t n = 0; n < 70; ++n) {
      EXPECT_EQ(Crc32c(7, &data[begin], n), Crc32cPortable(7, &data[begin], n));
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

TEST(StoreTest, NumbersOutOfRangeAreAbsent) {
  TemporaryFile file;
  const auto store = Created(file.path, 3, 8);
  for (const int64_t id : {int64_t{-1}, int64_t{3}, INT64_MAX, INT64_MIN}) {
    PutSample(store.get(), id);
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

TEST(StoreTest, ReplacedSamplesGiveTheirSlot) {
  TemporaryFile file;
  const auto store = Created(file.path, 10, 100);
  store->SetCapacity(2);
  PutSample(store.get(), 0);
  PutSample(store.get(), 1);
  PutSample(store.get(), 5, 0);
  EXPECT_FALSE(HasSample(store.get(), 0));
  EXPECT_TRUE(HasSample(store.get(), 1));
  EXPECT_TRUE(HasSample(store.get(), 5));
  PutSample(store.get(), 6, 0);  // not there any more: nothing to take
  EXPECT_FALSE(HasSample(store.get(), 6));
  EXPECT_EQ(store->Verify(), 0);
}

TEST(StoreTest, ReadersOfReplacedSamplesSeeWholeOnes) {
  TemporaryFile file;
  const auto store = Created(file.path, 40, 20000);
  store->SetCapacity(2);
  PutSample(store.get(), 0);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&] {
      while (!stop) {
        for (int64_t id = 0; id < 40; ++id) HasSample(store.get(), id);
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    for (int64_t id = 0; id < 40; ++id) PutSample(store.get(), (id + 1) % 40, id);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
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

// Flips each of many bits: what is damaged is absent, never wrong, never a signal; and is repaired.
TEST(StoreTest, AFlippedBitMakesASampleAbsent) {
  TemporaryFile file;
  const int64_t samples = 20, bytes = 200;
  {
    const auto store = Created(file.path, samples, bytes);
    for (int64_t id = 0; id < samples; ++id) PutSample(store.get(), id);
  }
  struct stat status;
  ASSERT_EQ(stat(file.path.c_str(), &status), 0);
  std::mt19937_64 random(1);
  int unreadable = 0, absent = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    int64_t offset = random() % status.st_size;
    if (trial % 3 == 0) offset = random() % 128;                  // header
    if (trial % 3 == 1) offset = kPage + random() % (8 * samples);  // table
    std::fstream raw(file.path, std::ios::in | std::ios::out | std::ios::binary);
    raw.seekg(offset);
    const char before = static_cast<char>(raw.get());
    raw.seekp(offset);
    raw.put(static_cast<char>(before ^ (1 << random() % 8)));
    raw.flush();
    std::string error;
    const auto store = Store::Open(file.path, &error);
    if (store == nullptr) {
      ++unreadable;
    } else {
      for (int64_t id = 0; id < samples; ++id) absent += !HasSample(store.get(), id);
      for (int64_t id = 0; id < samples; ++id) PutSample(store.get(), id);
      for (int64_t id = 0; id < samples; ++id) HasSample(store.get(), id);
    }
    if (trial % 50 == 49 || store == nullptr) {  // damage adds up in between
      raw.close();
      unlink(file.path.c_str());
      const auto fresh = Created(file.path, samples, bytes);
      for (int64_t id = 0; id < samples; ++id) PutSample(fresh.get(), id);
    }
  }
  EXPECT_GT(unreadable, 0);
  EXPECT_GT(absent, 100);
}

TEST(StoreTest, WhatIsNoStoreIsRefused) {
  TemporaryFile file;
  std::string error;
  EXPECT_EQ(Store::Open(file.path, &error), nullptr);
  EXPECT_NE(error.find("cannot open"), std::string::npos);
  std::ofstream(file.path) << "no store";
  EXPECT_EQ(Store::Open(file.path, &error), nullptr);
  EXPECT_NE(error.find("is not a store"), std::string::npos);
  EXPECT_NE(Store::Create(file.path, 1, 1), "");  // exists
  unlink(file.path.c_str());
  Created(file.path, 100, 100);
  EXPECT_EQ(truncate(file.path.c_str(), 9000), 0);
  EXPECT_EQ(Store::Open(file.path, &error), nullptr);
  EXPECT_NE(error.find("truncated"), std::string::npos);
  unlink(file.path.c_str());
  EXPECT_EQ(symlink("/etc/passwd", file.path.c_str()), 0);
  EXPECT_EQ(Store::Open(file.path, &error), nullptr);
}

TEST(StoreTest, AWriterKilledAtAnyMomentLeavesWholeSamples) {
  TemporaryFile file;
  const int64_t samples = 50;
  const auto store = Created(file.path, samples, 5000);
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      std::string error;
      const auto own = Store::Open(file.path, &error);
      for (int64_t k = 0;; ++k) PutSample(own.get(), (k + 1) % samples, k % samples);
    }
    usleep(500 + random() % 3000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(store->Verify(), 0) << "round " << round;
  }
  for (int64_t id = 0; id < samples; ++id) {
    PutSample(store.get(), id);
    HasSample(store.get(), id);
  }
  EXPECT_EQ(store->Verify(), 0);
}

TEST(StoreTest, AKilledWriterLosesNoRoom) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    TemporaryFile file;
    const int64_t samples = 300;
    const auto store = Created(file.path, samples, 3000);
    const pid_t child = fork();
    if (child == 0) {
      std::string error;
      const auto own = Store::Open(file.path, &error);
      for (int64_t id = samples - 1; id >= 0; --id) PutSample(own.get(), id);
      _exit(0);
    }
    usleep(200 + random() % 4000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(store->Verify(), 0);
    for (int64_t id = 0; id < samples; ++id) PutSample(store.get(), id);
    EXPECT_EQ(store->stats().stored, samples);
  }
}

}  // namespace
}  // namespace datacache
