// The layout of a store's file (store.h), for the parts of its implementation.

#ifndef CUSTOM_OPS_DATACACHE_STORE_STORE_FILE_H_
#define CUSTOM_OPS_DATACACHE_STORE_STORE_FILE_H_

#include <cstdint>

#include "custom_ops/datacache_store/store.h"

namespace datacache {

constexpr uint32_t kRecordMagic = 0x44435232;

inline uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

struct Store::Header {
  char magic[8];
  uint64_t samples;
  uint64_t payload_bytes;
  uint32_t crc;  // of the three above
  // What follows changes, under the writer's lock.
  alignas(64) uint64_t capacity;
  uint64_t used;     // slots that are or were somebody's: the first ones
  uint64_t changes;  // counts what may have made room
};

struct Store::Record {
  uint32_t crc;  // of id and payload
  uint32_t magic;
  uint64_t id;
  uint64_t payload_bytes;
  char unused[kAlignment - 24];
};

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_STORE_FILE_H_
