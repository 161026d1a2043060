// The writing half of a store.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "custom_ops/datacache_store/crc32c.h"
#include "custom_ops/datacache_store/guard.h"
#include "custom_ops/datacache_store/lock.h"
#include "custom_ops/datacache_store/store_file.h"
#include "custom_ops/datacache_store/write_all.h"

namespace datacache {
namespace {

constexpr uint64_t kNobody = ~uint64_t{0};
constexpr char kZeros[kAlignment] = {};

}  // namespace

// The one writer. Where the lock cannot be taken or the file has been truncated, it is not `ready`.
class Store::Writer {
 public:
  explicit Writer(Store* store)
      : store_(store),
        guard_(store->writer_),
        lock_("/proc/self/fd/" + std::to_string(store->fd_)) {  // wherever the file is by now
    struct stat status;
    if (fstat(store->fd_, &status) != 0 || status.st_size != store->file_bytes_) {
      store->truncated_ = true;
    }
  }

  bool ready() const { return lock_.held() && !store_->truncated_; }
  // Of the header and table, by the mapping: their memory is there. 0 where the file has been truncated.
  uint64_t Get(int64_t offset) const {
    uint64_t value = 0;
    const bool there = Guarded([&] { value = Load(reinterpret_cast<const uint64_t*>(store_->file_ + offset)); });
    return there ? value : 0;
  }
  bool Set(int64_t offset, uint64_t value) const {
    return pwrite(store_->fd_, &value, sizeof(value), offset) == sizeof(value);
  }
  void CountChange() const {
    Set(offsetof(Header, changes), Get(offsetof(Header, changes)) + 1);
  }
  int64_t EntryAt(int64_t id) const { return kPage + 8 * id; }
  // Of the slots in use, those that are some sample's by the table; none where that cannot be read.
  std::vector<bool> Owned() const;
  void Put(int64_t id, const std::vector<Piece>& pieces);

 private:
  uint64_t Used() const {
    return std::min<uint64_t>(Get(offsetof(Header, used)), store_->samples_);
  }
  int64_t OffsetOf(int64_t slot) const { return store_->data_begin_ + slot * store_->stride_; }
  // By a system call: the mapping would ask for memory where a slot's has never been written.
  uint64_t OwnerOf(int64_t slot) const {
    uint64_t owner = kNobody;
    const int64_t at = OffsetOf(slot) + static_cast<int64_t>(offsetof(Record, id));
    return pread(store_->fd_, &owner, sizeof(owner), at) == sizeof(owner) ? owner : kNobody;
  }
  bool IsOwned(int64_t slot) const {
    const uint64_t owner = OwnerOf(slot);
    return owner < static_cast<uint64_t>(store_->samples_) &&
           Get(EntryAt(owner)) == static_cast<uint64_t>(slot) + 1;
  }
  // Samples that the store may hold. Of what the header says no more is believed than this process has set.
  int64_t Capacity() const {
    return std::min<uint64_t>(Get(offsetof(Header, capacity)), store_->most_);
  }
  // A slot that nobody owns; -1 when the store is full.
  int64_t FreeSlot() const;
  void SeekFreeSlots() const;
  // Writes a slot; false when there is no room.
  bool Write(int64_t id, int64_t slot, const std::vector<Piece>& pieces) const;

  Store* store_;
  std::lock_guard<std::mutex> guard_;
  FileLock lock_;
};

bool Store::Writer::Write(int64_t id, int64_t slot, const std::vector<Piece>& pieces) const {
  Record record = {};
  record.magic = kRecordMagic;
  record.id = id;
  record.payload_bytes = pieces.empty() ? 0 : pieces.back().offset + pieces.back().bytes;
  record.crc = Crc32c(0, &record.id, sizeof(record.id));
  std::vector<iovec> parts = {{&record, sizeof(record)}};
  int64_t at = 0;
  const auto pad_to = [&](int64_t end) {
    for (int64_t n; at < end; at += n) {
      n = std::min<int64_t>(end - at, kAlignment);
      record.crc = Crc32c(record.crc, kZeros, n);
      parts.push_back({const_cast<char*>(kZeros), static_cast<size_t>(n)});
    }
  };
  for (const Piece& piece : pieces) {
    pad_to(piece.offset);
    record.crc = Crc32c(record.crc, piece.data, piece.bytes);
    parts.push_back({piece.data, static_cast<size_t>(piece.bytes)});
    at += piece.bytes;
  }
  const int fd = store_->fd_;
  const int64_t offset = OffsetOf(slot);
  if (static_cast<uint64_t>(slot) >= Used()) return WriteAll(fd, parts, offset);
  // A reader may be there: the slot has no owner until its payload is written.
  const std::vector<iovec> payload(parts.begin() + 1, parts.end());
  return Set(offset + static_cast<int64_t>(offsetof(Record, id)), kNobody) &&
         WriteAll(fd, payload, offset + static_cast<int64_t>(sizeof(Record))) &&
         WriteAll(fd, {parts[0]}, offset);
}

std::vector<bool> Store::Writer::Owned() const {
  std::vector<bool> owned(Used());
  std::vector<uint64_t> entries(std::min<int64_t>(store_->samples_, 1 << 16));
  for (int64_t first = 0; first < store_->samples_; first += entries.size()) {
    const int64_t count = std::min<int64_t>(entries.size(), store_->samples_ - first);
    if (pread(store_->fd_, entries.data(), 8 * count, EntryAt(first)) != 8 * count) return {};
    for (int64_t i = 0; i < count; ++i) {
      if (entries[i] > 0 && entries[i] <= owned.size()) owned[entries[i] - 1] = true;
    }
  }
  return owned;
}

// No more than there is room for: a damaged count of slots in use takes all for free.
void Store::Writer::SeekFreeSlots() const {
  const std::vector<bool> owned = Owned();
  const int64_t room = Capacity() - std::count(owned.begin(), owned.end(), true);
  std::vector<int64_t>& free = store_->free_;
  free.clear();
  for (size_t slot = 0; slot < owned.size() && static_cast<int64_t>(free.size()) < room; ++slot) {
    if (!owned[slot]) free.push_back(slot);
  }
  std::reverse(free.begin(), free.end());  // the first ones are taken first
}

int64_t Store::Writer::FreeSlot() const {
  const uint64_t changes = Get(offsetof(Header, changes));
  if (store_->sought_at_ != changes) {
    SeekFreeSlots();
    store_->sought_at_ = changes;
  }
  for (std::vector<int64_t>& free = store_->free_; !free.empty();) {
    const int64_t slot = free.back();
    free.pop_back();
    if (!IsOwned(slot)) return slot;  // else another process was faster
  }
  const uint64_t used = Used();
  if (used < static_cast<uint64_t>(Capacity())) return used;
  store_->full_at_ = changes;
  return -1;
}

void Store::Writer::Put(int64_t id, const std::vector<Piece>& pieces) {
  const uint64_t entry = Get(EntryAt(id));
  int64_t slot = entry == 0 || entry > Used() ? -1 : static_cast<int64_t>(entry) - 1;
  bool whole = false;
  if (slot >= 0 && !Guarded([&] { whole = store_->IsWhole(id, slot); })) store_->truncated_ = true;
  if (whole || store_->truncated_) return;  // another process was faster
  // A damaged sample's slot is still its own, unless it is the table's entry that is damaged.
  if (slot >= 0 && OwnerOf(slot) != static_cast<uint64_t>(id) && IsOwned(slot)) slot = -1;
  if (slot < 0) slot = FreeSlot();
  if (slot < 0) {
    ++store_->rejected_;
    return;
  }
  store_->checked_[id] = false;
  const bool fresh = static_cast<uint64_t>(slot) >= Used();
  if (!Write(id, slot, pieces) || (fresh && !Set(offsetof(Header, used), slot + 1)) ||
      !Set(EntryAt(id), slot + 1)) {
    store_->without_room_ = true;  // tmpfs has none although the budget has
    store_->full_at_ = Get(offsetof(Header, changes));
    ++store_->rejected_;
    return;
  }
  ++store_->put_;
}

void Store::Put(const std::vector<int64_t>& ids, const std::vector<std::vector<Piece>>& pieces) {
  // Without the lock: each miss of a full store comes here. Damaged samples are still repaired.
  bool all_absent = true, full = false;
  const bool there = Guarded([&] {
    full = full_at_ == Load(&header_->changes);
    for (size_t k = 0; k < ids.size() && all_absent; ++k) {
      all_absent = ids[k] < 0 || ids[k] >= samples_ || Load(&table_[ids[k]]) == 0;
    }
  });
  if (!there) truncated_ = true;
  if (truncated_ || (full && all_absent)) {
    rejected_ += ids.size();
    return;
  }
  Writer writer(this);
  for (size_t k = 0; k < ids.size(); ++k) {
    if (ids[k] < 0 || ids[k] >= samples_) continue;
    if (writer.ready()) {
      writer.Put(ids[k], pieces[k]);
    } else {
      ++rejected_;
    }
  }
}

void Store::Release(const std::vector<int64_t>& ids) {
  Writer writer(this);
  if (!writer.ready()) return;
  for (const int64_t id : ids) {
    if (id >= 0 && id < samples_) writer.Set(writer.EntryAt(id), 0);
  }
  writer.CountChange();
}

bool Store::SetCapacity(int64_t capacity) {
  Writer writer(this);
  if (!writer.ready()) return false;
  const std::vector<bool> owned = writer.Owned();
  const int64_t held = std::count(owned.begin(), owned.end(), true);
  most_ = std::min(std::max(capacity, held), samples_);
  writer.Set(offsetof(Header, capacity), most_);
  writer.CountChange();
  return true;
}

}  // namespace datacache
