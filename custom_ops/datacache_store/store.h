// A store of equally long samples in one file, shared by all processes of a machine.
//
// The file is meant for tmpfs: then it *is* memory, one copy whatever the number of processes, and it
// outlives them. Samples are known by number, 0 <= id < samples, so that a table of 8 bytes per sample
// takes the place of a tree:
//
//   header (one page) | table[samples]: slot + 1, 0 where absent | slots of `stride` bytes
//
// A slot is a 64-byte header (crc32c, magic, id, length) and the payload, which begins on a multiple of
// 64 bytes. The file is sparse: it takes memory for what is in it.
//
// Readers take no lock. Writers take flock() on the file, which the kernel frees when a process dies,
// and do, in this order: write the slot, give it away, publish it in the table. Whoever is killed between
// two of these leaves a store in which the sample is either whole or absent; the next writer takes back
// a slot that was given away to nobody. Slots are written by pwrite, so that a full tmpfs is an error return, not SIGBUS.
// Nothing that is read from the file is trusted: a flipped bit anywhere makes a sample absent.
//
// Samples are never evicted; a store with as many as `capacity` is full. Replace() gives the slot of
// one sample to another, for callers who exchange samples between machines.
//
// Thread-safe.

#ifndef CUSTOM_OPS_DATACACHE_STORE_STORE_H_
#define CUSTOM_OPS_DATACACHE_STORE_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace datacache {

constexpr int64_t kAlignment = 64;
constexpr int64_t kPage = 4096;

inline int64_t AlignUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A piece of a sample: `bytes` bytes at `offset` of the payload. Offsets ascend, pieces do not overlap.
struct Piece {
  char* data;
  int64_t offset;
  int64_t bytes;
};

struct Stats {
  int64_t samples, payload_bytes, capacity, stored;  // of the file
  int64_t hits, misses, bytes_read, put, rejected, corrupt;  // of this process
};

class Store {
 public:
  // Makes a file at `path`, which must not exist; returns what went wrong, "" if nothing.
  static std::string Create(const std::string& path, int64_t samples, int64_t payload_bytes);
  // Opens it; nullptr and `error` when it cannot be opened or is not a store.
  static std::unique_ptr<Store> Open(const std::string& path, std::string* error);
  ~Store();

  // Copies a sample; false where it is absent. Checks its crc when this process first reads it.
  bool Get(int64_t id, const std::vector<Piece>& pieces);
  // Stores samples that are absent or damaged; `pieces[k]` belongs to ids[k]. With `replaced`, of the
  // same length, sample ids[k] takes the slot of replaced[k] where that is present.
  // A full store rejects and counts; that is no error.
  void Put(const std::vector<int64_t>& ids, const std::vector<std::vector<Piece>>& pieces,
           const std::vector<int64_t>& replaced = {});
  // How many samples the store may hold from now on, in all processes; never below what it holds.
  void SetCapacity(int64_t capacity);
  // Reads all that is stored; returns how many samples are damaged.
  int64_t Verify();
  Stats stats() const;
  int64_t samples() const { return samples_; }
  int64_t payload_bytes() const { return payload_bytes_; }
  // Damaged samples that this process met, and whether the file system had no room for one.
  int64_t damaged() const { return corrupt_; }
  bool without_room() const { return without_room_; }

 private:
  struct Header;
  struct Record;
  class WriterLock;
  Store() = default;
  Record* RecordAt(int64_t slot) const;
  uint64_t Used() const;
  // The slot of a sample, -1 where absent.
  int64_t SlotOf(int64_t id) const;
  bool IsWhole(int64_t id, int64_t slot) const;
  // Writes a slot; false when there is no room.
  bool Write(int64_t id, int64_t slot, bool fresh, const std::vector<Piece>& pieces);
  void PutOne(int64_t id, const std::vector<Piece>& pieces, int64_t replaced);

  int fd_ = -1;
  int64_t samples_ = 0, payload_bytes_ = 0, stride_ = 0, data_begin_ = 0, file_bytes_ = 0;
  Header* header_ = nullptr;     // writable, with the table
  uint64_t* table_ = nullptr;
  const char* file_ = nullptr;   // all of it, to read
  std::mutex writer_;            // flock() does not tell threads apart
  std::unique_ptr<std::atomic<bool>[]> checked_;
  std::atomic<bool> full_{false};
  std::atomic<int64_t> hits_{0}, misses_{0}, bytes_read_{0}, put_{0}, rejected_{0}, corrupt_{0};
  std::atomic<bool> without_room_{false};
};

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_STORE_H_
