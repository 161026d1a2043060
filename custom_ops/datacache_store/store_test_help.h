// Stores in temporary files, and samples whose bytes follow from their numbers.

#ifndef CUSTOM_OPS_DATACACHE_STORE_STORE_TEST_HELP_H_
#define CUSTOM_OPS_DATACACHE_STORE_STORE_TEST_HELP_H_

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "custom_ops/datacache_store/store.h"
#include "gtest/gtest.h"

namespace datacache {

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

inline std::unique_ptr<Store> Opened(const std::string& path) {
  Fault fault;
  std::unique_ptr<Store> store = Store::Open(path, &fault);
  EXPECT_NE(store, nullptr) << fault.text;
  return store;
}

inline std::unique_ptr<Store> Created(const std::string& path, int64_t samples, int64_t bytes) {
  EXPECT_EQ(Store::Create(path, samples, bytes), "");
  std::unique_ptr<Store> store = Opened(path);
  store->SetCapacity(samples);
  return store;
}

inline std::string Sample(int64_t id, int64_t bytes) {
  std::mt19937 random(id);
  std::string data(bytes, '\0');
  for (char& c : data) c = static_cast<char>(random());
  return data;
}

inline void PutSample(Store* store, int64_t id) {
  std::string data = Sample(id, store->payload_bytes());
  store->Put({id}, {{{data.data(), 0, store->payload_bytes()}}});
}

// Whether the sample is there; fails when it is there and wrong.
inline bool HasSample(Store* store, int64_t id) {
  std::string data(store->payload_bytes(), 'x');
  if (!store->Get(id, {{data.data(), 0, store->payload_bytes()}})) return false;
  EXPECT_EQ(data, Sample(id, store->payload_bytes())) << "sample " << id;
  return true;
}

inline void FlipBit(const std::string& path, int64_t offset, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const int before = file.get();
  file.seekp(offset);
  file.put(static_cast<char>(before ^ (1 << bit)));
}

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_STORE_TEST_HELP_H_
