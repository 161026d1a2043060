// The store under damage and truncation, and with writers that are killed at any instruction.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/datacache_store/crc32c.h"
#include "custom_ops/datacache_store/lock.h"
#include "custom_ops/datacache_store/store.h"
#include "custom_ops/datacache_store/store_test_help.h"
#include "gtest/gtest.h"

namespace {

int lock_error = 0;  // with which flock() fails; 0: it does not

}  // namespace

// In place of the C library's: as on a file system without locks.
extern "C" int flock(int fd, int operation) noexcept {
  errno = lock_error;
  return lock_error == 0 ? static_cast<int>(syscall(SYS_flock, fd, operation)) : -1;
}

namespace datacache {
namespace {

TEST(StoreFaultsTest, ATruncatedStoreIsEmptyNotASignal) {
  for (const int64_t left : {0, 8192, 20000}) {
    TemporaryFile file;
    const auto store = Created(file.path, 10, 5000);
    for (int64_t id = 0; id < 10; ++id) PutSample(store.get(), id);
    EXPECT_TRUE(HasSample(store.get(), 9));
    ASSERT_EQ(truncate(file.path.c_str(), left), 0);
    std::string read;
    EXPECT_FALSE(HasSample(store.get(), 9)) << left;
    EXPECT_FALSE(store->Get(8, &read));
    PutSample(store.get(), 9);
    EXPECT_TRUE(store->truncated());
    EXPECT_FALSE(store->SetCapacity(5));
    store->Release({1});
    EXPECT_EQ(store->Verify(), 0);
    EXPECT_EQ(store->stats().stored, 0);
    struct stat status;
    ASSERT_EQ(stat(file.path.c_str(), &status), 0);
    EXPECT_EQ(status.st_size, left);  // nothing has been written
  }
}

TEST(StoreFaultsTest, ATruncatedStoreIsNoticedByEachKindOfAccess) {
  const std::vector<std::function<void(Store*)>> accesses = {
      [](Store* store) { HasSample(store, 3); }, [](Store* store) { PutSample(store, 3); },
      [](Store* store) { store->Verify(); },     [](Store* store) { store->stats(); },
      [](Store* store) { store->full(); },       [](Store* store) { store->SetCapacity(9); },
      [](Store* store) { store->Release({3}); }, [](Store* store) { store->Examine(3); },
      [](Store* store) { const int64_t id = 3; store->Unread(&id, 1); },
      [](Store* store) { std::string data; store->Get(3, &data); }};
  for (const auto& access : accesses) {
    TemporaryFile file;
    const auto store = Created(file.path, 10, 5000);
    PutSample(store.get(), 3);
    ASSERT_EQ(truncate(file.path.c_str(), 0), 0);
    access(store.get());
    EXPECT_TRUE(store->truncated());
  }
}

TEST(StoreFaultsTest, ABusErrorOfOthersKills) {
  TemporaryFile file;
  const auto store = Created(file.path, 10, 100);
  const auto killed = [](int status) { return status != 0; };  // AddressSanitizer's handler calls exit()
  EXPECT_EXIT(raise(SIGBUS), killed, "");
  const int fd = open(file.path.c_str(), O_RDONLY);
  const auto* beyond = static_cast<volatile char*>(mmap(nullptr, 1 << 20, PROT_READ, MAP_SHARED, fd, 0));
  EXPECT_EXIT((void)beyond[(1 << 20) - 1], killed, "");
  close(fd);
}

TEST(StoreFaultsTest, AForkedChildKeepsNoLock) {
  TemporaryFile file;
  Created(file.path, 10, 100);
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const FileLock lock(file.path);
    if (fork() == 0) {  // lives on when the holder of the lock is gone
      char c;
      close(go[1]);
      const ssize_t end = read(go[0], &c, 1);
      _exit(static_cast<int>(end));
    }
    _exit(0);
  }
  waitpid(parent, nullptr, 0);
  const int fd = open(file.path.c_str(), O_RDONLY);
  int code = -1;
  for (int i = 0; i < 5000 && code != 0; ++i) {  // until the child has run its first instructions
    code = flock(fd, LOCK_EX | LOCK_NB);
    usleep(1000);
  }
  EXPECT_EQ(code, 0);
  close(fd);
  close(go[0]);
  close(go[1]);
}

TEST(StoreFaultsTest, NobodyWritesWithoutTheLock) {
  TemporaryFile file;
  const auto store = Created(file.path, 10, 100);
  PutSample(store.get(), 1);
  for (const int error : {ENOLCK, EOPNOTSUPP}) {
    lock_error = error;
    EXPECT_FALSE(FileLock(file.path).held());
    PutSample(store.get(), 2);
    store->Release({1});
    EXPECT_FALSE(store->SetCapacity(5));
    lock_error = 0;
    EXPECT_TRUE(HasSample(store.get(), 1));
    EXPECT_FALSE(HasSample(store.get(), 2));
    EXPECT_EQ(store->stats().capacity, 10);
    EXPECT_FALSE(store->truncated());
  }
  PutSample(store.get(), 2);
  EXPECT_TRUE(HasSample(store.get(), 2));
}

TEST(StoreFaultsTest, AFlippedBitMakesASampleAbsent) {
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
    FlipBit(file.path, offset, random() % 8);
    Fault fault;
    const auto store = Store::Open(file.path, &fault);
    if (store == nullptr) {
      ++unreadable;
    } else {
      for (int64_t id = 0; id < samples; ++id) absent += !HasSample(store.get(), id);
      for (int64_t id = 0; id < samples; ++id) PutSample(store.get(), id);
      for (int64_t id = 0; id < samples; ++id) HasSample(store.get(), id);
    }
    if (trial % 50 == 49 || store == nullptr) {  // damage adds up in between
      unlink(file.path.c_str());
      const auto fresh = Created(file.path, samples, bytes);
      for (int64_t id = 0; id < samples; ++id) PutSample(fresh.get(), id);
    }
  }
  EXPECT_GT(unreadable, 0);
  EXPECT_GT(absent, 100);
}

// Neither for who has it open nor for who opens it then. The two words are capacity and count of used slots.
TEST(StoreFaultsTest, AFlippedBitInTheHeaderLiftsNoLimit) {
  const int64_t samples = 100, capacity = 10;
  for (int bit = 0; bit < 128; ++bit) {
    TemporaryFile file;
    const auto before = Created(file.path, samples, 64);
    ASSERT_TRUE(before->SetCapacity(capacity));
    for (int64_t id = 0; id < 5; ++id) PutSample(before.get(), id);
    FlipBit(file.path, 64 + bit / 8, bit % 8);
    const auto after = Opened(file.path);
    for (Store* store : {before.get(), after.get()}) {
      ASSERT_TRUE(store == before.get() || store->SetCapacity(capacity));
      int64_t held = 0;
      for (int64_t id = 0; id < samples; ++id) PutSample(store, id);
      for (int64_t id = 0; id < samples; ++id) held += HasSample(store, id);
      EXPECT_LE(held, capacity) << bit;
      EXPECT_GE(held, 5) << bit;
    }
  }
}

TEST(StoreFaultsTest, ExaminedSamplesAreNotCheckedAgain) {
  TemporaryFile file;
  for (int64_t id = 0; id < 2; ++id) {
    const auto store = id == 0 ? Created(file.path, 2, 200) : Opened(file.path);
    PutSample(store.get(), id);
  }
  const auto damage = [&](int64_t id) {  // the last byte of its payload
    std::fstream raw(file.path, std::ios::in | std::ios::out | std::ios::binary);
    const int64_t offset = 2 * kPage + id * (kAlignment + 256) + kAlignment + 199;
    raw.seekg(offset);
    const char before = static_cast<char>(raw.get());
    raw.seekp(offset);
    raw.put(static_cast<char>(before ^ 1));
  };
  const auto store = Opened(file.path);
  damage(1);
  const std::vector<int64_t> ids = {1, 5, -1, 0};
  EXPECT_EQ(store->Unread(ids.data(), ids.size()), (std::vector<int64_t>{0, 1}));  // in the order of the memory
  for (const int64_t id : {0, 1}) store->Examine(id);
  EXPECT_EQ(store->Unread(ids.data(), ids.size()), std::vector<int64_t>{1});
  EXPECT_EQ(store->damaged(), 0);
  damage(0);
  std::string data;
  EXPECT_TRUE(store->Get(0, &data));
  EXPECT_FALSE(store->Get(1, &data));
  EXPECT_EQ(store->damaged(), 1);
}

TEST(StoreFaultsTest, WhatIsNoStoreIsRefused) {
  TemporaryFile file;
  Fault fault;
  EXPECT_EQ(Store::Open(file.path, &fault), nullptr);
  EXPECT_NE(fault.text.find("cannot open"), std::string::npos);
  std::ofstream(file.path) << "no store";
  EXPECT_EQ(Store::Open(file.path, &fault), nullptr);
  EXPECT_NE(fault.text.find("is not a store"), std::string::npos);
  EXPECT_NE(Store::Create(file.path, 1, 1), "");  // exists
  unlink(file.path.c_str());
  Created(file.path, 100, 100);
  EXPECT_EQ(truncate(file.path.c_str(), 9000), 0);
  EXPECT_EQ(Store::Open(file.path, &fault), nullptr);
  EXPECT_NE(fault.text.find("truncated"), std::string::npos);
  unlink(file.path.c_str());
  EXPECT_EQ(symlink("/etc/passwd", file.path.c_str()), 0);
  EXPECT_EQ(Store::Open(file.path, &fault), nullptr);
  EXPECT_TRUE(fault.of_file);
}

TEST(StoreFaultsTest, WhatTheProcessLacksIsNoFaultOfTheFile) {
  TemporaryFile file;
  Created(file.path, 100, 100);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Fault fault;
  EXPECT_EQ(Store::Open(file.path, &fault), nullptr);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(fault.of_file) << fault.text;
  EXPECT_NE(Store::Open(file.path, &fault), nullptr);
}

// With the right checksum: sizes that overflow, or that fit no file of this size.
TEST(StoreFaultsTest, AForgedHeaderIsRefused) {
  struct Sizes {
    uint64_t samples, payload_bytes;
    int64_t file_bytes;  // with these the file's size would be right, as 64 bits count
  };
  constexpr uint64_t kTop = uint64_t{1} << 63;
  for (const Sizes& sizes : std::vector<Sizes>{{uint64_t{1} << 61, 128, kPage},
                                               {uint64_t{1} << 61, 128, 1 << 20},
                                               {kTop, 0, kPage},
                                               {~uint64_t{0}, 128, kPage - 192},
                                               {2, kTop, 2 * kPage + 128},
                                               {1, ~uint64_t{0}, 2 * kPage + 64},
                                               {0, ~uint64_t{0}, kPage},
                                               {11, 128, 2 * kPage + 10 * 192},
                                               {10, 256, 2 * kPage + 10 * 192}}) {
    TemporaryFile file;
    Created(file.path, 10, 128);
    char header[28] = {'D', 'C', 's', 't', 'o', 'r', 'e', '2'};
    std::memcpy(header + 8, &sizes.samples, 8);
    std::memcpy(header + 16, &sizes.payload_bytes, 8);
    const uint32_t crc = Crc32c(0, header, 24);
    std::memcpy(header + 24, &crc, 4);
    std::fstream(file.path, std::ios::in | std::ios::out | std::ios::binary).write(header, sizeof(header));
    ASSERT_EQ(truncate(file.path.c_str(), sizes.file_bytes), 0);
    Fault fault;
    EXPECT_EQ(Store::Open(file.path, &fault), nullptr) << sizes.samples << " " << sizes.payload_bytes;
    EXPECT_NE(fault.text.find("header is damaged"), std::string::npos) << fault.text;
  }
}

TEST(StoreFaultsTest, AWriterKilledAtAnyMomentLeavesWholeSamples) {
  TemporaryFile file;
  const int64_t samples = 50;
  const auto store = Created(file.path, samples, 5000);
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      Fault fault;
      const auto own = Store::Open(file.path, &fault);
      for (int64_t k = 0;; ++k) {
        own->Release({k % samples});
        PutSample(own.get(), (k + 1) % samples);
      }
    }
    usleep(500 + random() % 3000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(store->Verify(), 0) << "round " << round;
  }
  for (int64_t id = 0; id < samples; ++id) {
    PutSample(store.get(), id);
    EXPECT_TRUE(HasSample(store.get(), id));
  }
  EXPECT_EQ(store->Verify(), 0);
}

TEST(StoreFaultsTest, AKilledWriterLosesNoRoom) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    TemporaryFile file;
    const int64_t samples = 300;
    const auto store = Created(file.path, samples, 3000);
    const pid_t child = fork();
    if (child == 0) {
      Fault fault;
      const auto own = Store::Open(file.path, &fault);
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
