#include "custom_ops/datacache_store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "custom_ops/datacache_store/crc32c.h"

namespace datacache {
namespace {

constexpr char kMagic[8] = {'D', 'C', 's', 't', 'o', 'r', 'e', '1'};
constexpr uint32_t kRecordMagic = 0x44435231;
constexpr uint64_t kNobody = ~uint64_t{0};
constexpr char kZeros[kAlignment] = {};

uint64_t Load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void Publish(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

std::string Failure(const std::string& what, const std::string& path) {
  return what + " " + path + ": " + std::strerror(errno);
}

// pwritev that goes on after short writes; false with errno on failure.
bool WriteAll(int fd, std::vector<iovec> parts, int64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    const int count = static_cast<int>(std::min<size_t>(parts.size() - first, 512));
    const ssize_t written = pwritev(fd, &parts[first], count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    offset += written;
    size_t left = written;
    while (first < parts.size() && left >= parts[first].iov_len) left -= parts[first++].iov_len;
    if (left > 0) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + left;
      parts[first].iov_len -= left;
    }
  }
  return true;
}

}  // namespace

struct Store::Header {
  char magic[8];
  uint64_t samples;
  uint64_t payload_bytes;
  uint32_t crc;  // of the three above
  // What follows changes, under the writer's lock.
  alignas(64) uint64_t capacity;
  uint64_t used;     // slots that have been given away
  uint64_t pending;  // slot + 1 that is being given away, 0 if none
};

struct Store::Record {
  uint32_t crc;  // of id and payload
  uint32_t magic;
  uint64_t id;
  uint64_t payload_bytes;
  char unused[kAlignment - 24];
};

// The lock of the one writer, and what a writer that was killed left to do.
class Store::WriterLock {
 public:
  explicit WriterLock(Store* store) : store_(store), guard_(store->writer_) {
    while (flock(store_->fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
    Header* header = store_->header_;
    const uint64_t pending = Load(&header->pending);
    if (pending == 0) return;
    // Killed while it gave a slot away: that is undone unless a sample was published in it.
    const uint64_t slot = pending - 1;
    if (slot < static_cast<uint64_t>(store_->samples_) &&
        (slot == header->used || slot + 1 == header->used)) {
      const uint64_t id = store_->RecordAt(slot)->id;
      const bool published =
          id < static_cast<uint64_t>(store_->samples_) && Load(&store_->table_[id]) == slot + 1;
      Publish(&header->used, published ? slot + 1 : slot);
    }
    Publish(&header->pending, 0);
  }
  ~WriterLock() { flock(store_->fd_, LOCK_UN); }

 private:
  Store* store_;
  std::lock_guard<std::mutex> guard_;
};

std::string Store::Create(const std::string& path, int64_t samples, int64_t payload_bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failure("cannot create", path);
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.samples = samples;
  header.payload_bytes = payload_bytes;
  header.crc = Crc32c(0, &header, offsetof(Header, crc));
  const int64_t data_begin = AlignUp(kPage + 8 * samples, kPage);
  const int64_t stride = kAlignment + AlignUp(payload_bytes, kAlignment);
  std::string error;
  // Header and table are written through a mapping: their memory must be there before.
  const int missing = posix_fallocate(fd, 0, data_begin);
  if (missing != 0) errno = missing;
  if (missing != 0 || ftruncate(fd, data_begin + samples * stride) != 0 ||
      !WriteAll(fd, {{&header, sizeof(header)}}, 0)) {
    error = Failure("no room for the table of", path);
    unlink(path.c_str());
  }
  close(fd);
  return error;
}

std::unique_ptr<Store> Store::Open(const std::string& path, std::string* error) {
  std::unique_ptr<Store> store(new Store);
  store->fd_ = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (store->fd_ < 0) {
    *error = Failure("cannot open", path);
    return nullptr;
  }
  Header header;
  struct stat status;
  const bool readable = pread(store->fd_, &header, sizeof(header), 0) == sizeof(header) &&
                        fstat(store->fd_, &status) == 0;
  if (!readable || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.crc != Crc32c(0, &header, offsetof(Header, crc))) {
    *error = path + " is not a store of this version, or its header is damaged";
    return nullptr;
  }
  store->samples_ = header.samples;
  store->payload_bytes_ = header.payload_bytes;
  store->stride_ = kAlignment + AlignUp(header.payload_bytes, kAlignment);
  store->data_begin_ = AlignUp(kPage + 8 * store->samples_, kPage);
  store->file_bytes_ = store->data_begin_ + store->samples_ * store->stride_;
  // A shorter file would be SIGBUS to a reader.
  if (status.st_size != store->file_bytes_) {
    *error = path + " has been truncated";
    return nullptr;
  }
  void* begin = mmap(nullptr, store->data_begin_, PROT_READ | PROT_WRITE, MAP_SHARED, store->fd_, 0);
  void* file = mmap(nullptr, store->file_bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, store->fd_, 0);
  if (begin != MAP_FAILED) store->header_ = static_cast<Header*>(begin);
  if (file != MAP_FAILED) store->file_ = static_cast<const char*>(file);
  if (begin == MAP_FAILED || file == MAP_FAILED) {
    *error = Failure("cannot map", path);
    return nullptr;
  }
  store->table_ = reinterpret_cast<uint64_t*>(static_cast<char*>(begin) + kPage);
  store->checked_.reset(new std::atomic<bool>[store->samples_]());
  return store;
}

Store::~Store() {
  if (header_ != nullptr) munmap(header_, data_begin_);
  if (file_ != nullptr) munmap(const_cast<char*>(file_), file_bytes_);
  if (fd_ >= 0) close(fd_);
}

Store::Record* Store::RecordAt(int64_t slot) const {
  return reinterpret_cast<Record*>(const_cast<char*>(file_) + data_begin_ + slot * stride_);
}

uint64_t Store::Used() const {
  // A damaged count, as large as it may be, leads to no slot that is not there.
  return std::min<uint64_t>(Load(&header_->used), samples_);
}

int64_t Store::SlotOf(int64_t id) const {
  if (id < 0 || id >= samples_) return -1;
  const uint64_t entry = Load(&table_[id]);
  // A damaged entry must not lead outside the file, nor into its holes: reading a hole of a full tmpfs
  // is SIGBUS. A table may refer to a slot only after it has been written and given away.
  return entry == 0 || entry > Used() ? -1 : static_cast<int64_t>(entry - 1);
}

bool Store::IsWhole(int64_t id, int64_t slot) const {
  const Record* record = RecordAt(slot);
  if (record->magic != kRecordMagic || Load(&record->id) != static_cast<uint64_t>(id) ||
      record->payload_bytes != static_cast<uint64_t>(payload_bytes_)) {
    return false;
  }
  const uint32_t crc = Crc32c(0, &record->id, sizeof(record->id));
  return Crc32c(crc, record + 1, payload_bytes_) == record->crc;
}

bool Store::Get(int64_t id, const std::vector<Piece>& pieces) {
  const int64_t slot = SlotOf(id);
  if (slot < 0) {
    if (id >= 0 && id < samples_ && Load(&table_[id]) != 0) ++corrupt_;
    ++misses_;
    return false;
  }
  const Record* record = RecordAt(slot);
  const uint64_t owner = Load(&record->id);
  bool good = owner == static_cast<uint64_t>(id);
  if (good && !checked_[id].load(std::memory_order_relaxed)) {
    good = IsWhole(id, slot);
    checked_[id].store(good, std::memory_order_relaxed);
  }
  if (!good) {
    // The slot may just have been given to another sample, which is no damage.
    if (SlotOf(id) == slot) ++corrupt_;
    ++misses_;
    return false;
  }
  const char* payload = reinterpret_cast<const char*>(record + 1);
  for (const Piece& piece : pieces) std::memcpy(piece.data, payload + piece.offset, piece.bytes);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  // Replace() takes the slot's id away before it writes: what was copied is whole if it is still there.
  if (Load(&record->id) != owner) {
    ++misses_;
    return false;
  }
  ++hits_;
  bytes_read_ += payload_bytes_;
  return true;
}

bool Store::Write(int64_t id, int64_t slot, bool fresh, const std::vector<Piece>& pieces) {
  Record record = {};
  record.magic = kRecordMagic;
  record.id = id;
  record.payload_bytes = payload_bytes_;
  record.crc = Crc32c(0, &record.id, sizeof(record.id));
  const int64_t offset = data_begin_ + slot * stride_;
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
  pad_to(payload_bytes_);
  if (fresh) return WriteAll(fd_, parts, offset);
  // A reader may be there: the slot has no owner until its payload is written.
  const uint64_t nobody = kNobody;
  const std::vector<iovec> payload(parts.begin() + 1, parts.end());
  return WriteAll(fd_, {{const_cast<uint64_t*>(&nobody), sizeof(nobody)}},
                  offset + static_cast<int64_t>(offsetof(Record, id))) &&
         WriteAll(fd_, payload, offset + static_cast<int64_t>(sizeof(Record))) &&
         WriteAll(fd_, {parts[0]}, offset);
}

void Store::PutOne(int64_t id, const std::vector<Piece>& pieces, int64_t replaced) {
  if (id < 0 || id >= samples_) return;
  int64_t slot = SlotOf(id);
  if (slot >= 0 && IsWhole(id, slot)) return;  // another process was faster
  // Where only the payload is damaged the slot is still ours.
  const bool own = slot >= 0 && RecordAt(slot)->id == static_cast<uint64_t>(id);
  if (!own) {
    slot = replaced >= 0 ? SlotOf(replaced) : -1;
    if (slot >= 0) Publish(&table_[replaced], 0);
  }
  const bool fresh = slot < 0;
  if (fresh) {
    slot = Used();
    if (slot >= samples_ || static_cast<uint64_t>(slot) >= header_->capacity) full_ = true;
  }
  if (fresh && full_) {
    ++rejected_;
    return;
  }
  checked_[id] = false;
  if (!Write(id, slot, fresh, pieces)) {
    full_ = without_room_ = true;  // tmpfs has none although the budget has
    ++rejected_;
    return;
  }
  if (fresh) {
    Publish(&header_->pending, slot + 1);
    Publish(&header_->used, slot + 1);
  }
  Publish(&table_[id], slot + 1);
  if (fresh) Publish(&header_->pending, 0);
  ++put_;
}

void Store::Put(const std::vector<int64_t>& ids, const std::vector<std::vector<Piece>>& pieces,
                const std::vector<int64_t>& replaced) {
  // Without the lock: each miss of a full store comes here. Damaged samples are still repaired.
  const bool all_absent = std::all_of(ids.begin(), ids.end(), [this](int64_t id) {
    return id < 0 || id >= samples_ || Load(&table_[id]) == 0;
  });
  if (full_ && all_absent && replaced.empty()) {
    rejected_ += ids.size();
    return;
  }
  WriterLock lock(this);
  for (size_t k = 0; k < ids.size(); ++k) {
    PutOne(ids[k], pieces[k], replaced.empty() ? -1 : replaced[k]);
  }
}

void Store::SetCapacity(int64_t capacity) {
  WriterLock lock(this);
  Publish(&header_->capacity, std::min(std::max<int64_t>(capacity, Used()), samples_));
  full_ = false;
}

int64_t Store::Verify() {
  int64_t damaged = 0;
  for (int64_t id = 0; id < samples_; ++id) {
    if (Load(&table_[id]) == 0) continue;
    const int64_t slot = SlotOf(id);
    if (slot < 0 || !IsWhole(id, slot)) ++damaged;
  }
  return damaged;
}

Stats Store::stats() const {
  int64_t stored = 0;
  for (int64_t id = 0; id < samples_; ++id) stored += Load(&table_[id]) != 0;
  return {samples_, payload_bytes_, static_cast<int64_t>(header_->capacity), stored,
          hits_,    misses_,        bytes_read_,                             put_,
          rejected_, corrupt_};
}

}  // namespace datacache
