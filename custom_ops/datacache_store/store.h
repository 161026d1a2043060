// A store of equally long samples in one file, shared by all processes of a machine.
//
// The file is meant for tmpfs: then it *is* memory, one copy whatever the number of processes, and it
// outlives them. Samples are known by number, 0 <= id < samples, so that a table of 8 bytes per sample
// takes the place of a tree:
//
//   header (one page) | table[samples]: slot + 1, 0 where absent | slots of `stride` bytes
//
// A slot is a 64-byte header (crc32c, magic, id, length) and the payload, which begins on a multiple of
// 64 bytes. The file is sparse: it takes memory for what is in it, so that samples may be shorter than a slot.
//
// Readers take no lock. Writers take flock() on the file, which the kernel frees when a process dies,
// and do, in this order: write the slot, count it, publish it in the table. Whoever is killed between
// two of these leaves a store in which the sample is either whole or absent; a slot that no sample owns is
// found and used by a later writer. Writers use pread and pwrite, so that a full tmpfs is an error return;
// readers, who copy out of a mapping, survive its truncation (guard.h): it makes all samples absent.
// Nothing that is read from the file is trusted: a flipped bit anywhere makes a sample absent.
//
// Samples are never evicted; a store with as many as `capacity` is full. Release() gives back the slots of
// samples for callers who exchange samples between machines.
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

// Why a file cannot be opened: what is wrong with it, unless this process lacks memory or descriptors.
struct Fault {
  std::string text;
  bool of_file = true;
};

class Store {
 public:
  // Makes a file at `path`, which must not exist; returns what went wrong, "" if nothing.
  static std::string Create(const std::string& path, int64_t samples, int64_t payload_bytes);
  // Opens it; nullptr and `fault` when it cannot be opened or is not a store.
  static std::unique_ptr<Store> Open(const std::string& path, Fault* fault);
  ~Store();

  // Copies a sample; false where it is absent. Checks its crc unless this process has done so. `next`, any
  // number, is a sample that will be asked for soon: its pages are looked up meanwhile.
  bool Get(int64_t id, const std::vector<Piece>& pieces, int64_t next = -1);
  // The same for a sample of any length, without the bytes that Put() padded.
  bool Get(int64_t id, std::string* data);
  // Those of the samples that are there and that this process has not read, in the order of their memory.
  std::vector<int64_t> Unread(const int64_t* ids, int64_t n);
  // Does for one of them what the first Get() does: maps its memory, checks its crc. Counts nothing.
  void Examine(int64_t id);
  // Stores samples that are absent or damaged; `pieces[k]` belongs to ids[k]. A full store rejects and
  // counts; that is no error.
  void Put(const std::vector<int64_t>& ids, const std::vector<std::vector<Piece>>& pieces);
  // Whether as many are stored as may be.
  bool full();
  // Makes samples absent; others may take their slots.
  void Release(const std::vector<int64_t>& ids);
  // How many samples the store may hold from now on, in all processes; never below what it holds. This
  // process keeps to its own number, too, whatever becomes of the file's. False where the file has been
  // truncated or cannot be locked.
  bool SetCapacity(int64_t capacity);
  // Reads all that is stored; returns how many samples are damaged.
  int64_t Verify();
  Stats stats();
  int64_t payload_bytes() const { return payload_bytes_; }
  // Damaged samples that this process met, whether the file system had no room for one, and whether
  // somebody has truncated the file, which ends its use by this process.
  int64_t damaged() const { return corrupt_; }
  bool without_room() const { return without_room_; }
  bool truncated() const { return truncated_; }
  // That callers spent in Get().
  std::atomic<int64_t> microseconds{0};

 private:
  struct Header;
  struct Record;
  class Writer;
  Store() = default;
  // By the mapping; only inside Guarded().
  const Record* RecordAt(int64_t slot) const;
  uint64_t Used() const;
  int64_t SlotOf(int64_t id) const;  // -1 where absent
  bool IsWhole(int64_t id, int64_t slot) const;
  // The record of a sample whose crc is right, or has been; nullptr where absent.
  const Record* Find(int64_t id);
  void Prefetch(int64_t id) const;
  bool Count(bool found, int64_t bytes);

  int fd_ = -1;
  int64_t samples_ = 0, payload_bytes_ = 0, stride_ = 0, data_begin_ = 0, file_bytes_ = 0;
  const char* file_ = nullptr;       // all of it, to read
  const Header* header_ = nullptr;   // its parts
  const uint64_t* table_ = nullptr;
  std::unique_ptr<std::atomic<bool>[]> checked_;
  std::atomic<bool> truncated_{false}, without_room_{false};
  // The header's count of changes at which there was no room.
  std::atomic<uint64_t> full_at_{~uint64_t{0}};
  std::atomic<int64_t> hits_{0}, misses_{0}, bytes_read_{0}, put_{0}, rejected_{0}, corrupt_{0};
  // Under the writer's lock: the capacity that this process has set, all samples before; and slots that
  // nobody owned, at the count of changes at which they were sought.
  std::mutex writer_;
  int64_t most_ = 0;
  std::vector<int64_t> free_;
  uint64_t sought_at_ = ~uint64_t{0};
};

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_STORE_H_
