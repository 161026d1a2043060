#include "custom_ops/datacache_store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include "custom_ops/datacache_store/crc32c.h"
#include "custom_ops/datacache_store/guard.h"
#include "custom_ops/datacache_store/store_file.h"
#include "custom_ops/datacache_store/write_all.h"

namespace datacache {
namespace {

constexpr int64_t kPrefetched = 64 << 10;
constexpr int64_t kPiece = 1 << 20;
constexpr char kMagic[8] = {'D', 'C', 's', 't', 'o', 'r', 'e', '2'};

std::string Failure(const std::string& what, const std::string& path) {
  return what + " " + path + ": " + std::strerror(errno);
}

}  // namespace

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
  // The table's memory must be there before: its holes could not be read in a full tmpfs.
  int missing = 0;
  // Piece by piece: at any signal tmpfs stops (before Linux 6.10), and gives back the piece.
  for (int64_t at = 0; missing == 0 && at < data_begin; at += kPiece) {
    do {
      missing = posix_fallocate(fd, at, std::min(kPiece, data_begin - at));
    } while (missing == EINTR);
  }
  if (missing != 0) errno = missing;
  if (missing != 0 || ftruncate(fd, data_begin + samples * stride) != 0 ||
      !WriteAll(fd, {{&header, sizeof(header)}}, 0)) {
    error = Failure("no room for the table of", path);
    unlink(path.c_str());
  }
  close(fd);
  return error;
}

std::unique_ptr<Store> Store::Open(const std::string& path, Fault* fault) {
  std::unique_ptr<Store> store(new Store);
  store->fd_ = open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (store->fd_ < 0) {
    const bool lacking = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
    *fault = {Failure("cannot open", path), !lacking};
    return nullptr;
  }
  Header header;
  struct stat status;
  const bool readable = pread(store->fd_, &header, sizeof(header), 0) == sizeof(header) &&
                        fstat(store->fd_, &status) == 0;
  if (!readable || std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0 ||
      header.crc != Crc32c(0, &header, offsetof(Header, crc))) {
    *fault = {path + " is not a store of this version, or its header is damaged"};
    return nullptr;
  }
  // First that it can be in a file of this size: what does not fit could overflow when it is multiplied.
  const uint64_t room = std::max<int64_t>(status.st_size - kPage, 0);
  bool fits = header.payload_bytes <= room;
  if (fits) {
    store->payload_bytes_ = header.payload_bytes;
    store->stride_ = kAlignment + AlignUp(store->payload_bytes_, kAlignment);
    fits = header.samples <= room / (store->stride_ + 8);
  }
  if (fits) {
    store->samples_ = store->most_ = header.samples;
    store->data_begin_ = AlignUp(kPage + 8 * store->samples_, kPage);
    store->file_bytes_ = store->data_begin_ + store->samples_ * store->stride_;
  }
  if (!fits || status.st_size != store->file_bytes_) {
    *fault = {path + " has been truncated, or its header is damaged"};
    return nullptr;
  }
  CatchBusErrors();
  void* file = mmap(nullptr, store->file_bytes_, PROT_READ, MAP_SHARED | MAP_NORESERVE, store->fd_, 0);
  if (file == MAP_FAILED) {
    const std::string size = std::to_string(store->file_bytes_ >> 20);
    *fault = {Failure("cannot map (ulimit -v?) the " + size + " MiB of", path), false};
    return nullptr;
  }
  store->file_ = static_cast<const char*>(file);
  store->header_ = static_cast<const Header*>(file);
  store->table_ = reinterpret_cast<const uint64_t*>(store->file_ + kPage);
  store->checked_.reset(new (std::nothrow) std::atomic<bool>[store->samples_]());
  if (store->checked_ == nullptr) {
    *fault = {"no memory for the " + std::to_string(store->samples_) + " samples of " + path, false};
    return nullptr;
  }
  return store;
}

Store::~Store() {
  if (file_ != nullptr) munmap(const_cast<char*>(file_), file_bytes_);
  if (fd_ >= 0) close(fd_);
}

const Store::Record* Store::RecordAt(int64_t slot) const {
  return reinterpret_cast<const Record*>(file_ + data_begin_ + slot * stride_);
}

uint64_t Store::Used() const {
  // A damaged count, as large as it may be, leads to no slot that is not there.
  return std::min<uint64_t>(Load(&header_->used), samples_);
}

int64_t Store::SlotOf(int64_t id) const {
  const uint64_t entry = Load(&table_[id]);
  // A damaged entry must not lead outside the file. A table may refer to a slot only after it has been
  // written and counted.
  return entry == 0 || entry > Used() ? -1 : static_cast<int64_t>(entry - 1);
}

bool Store::IsWhole(int64_t id, int64_t slot) const {
  const Record* record = RecordAt(slot);
  const uint64_t bytes = Load(&record->payload_bytes);
  if (record->magic != kRecordMagic || Load(&record->id) != static_cast<uint64_t>(id) ||
      bytes > static_cast<uint64_t>(payload_bytes_)) {
    return false;
  }
  const uint32_t crc = Crc32c(0, &record->id, sizeof(record->id));
  return Crc32c(crc, record + 1, bytes) == record->crc;
}

const Store::Record* Store::Find(int64_t id) {
  const int64_t slot = SlotOf(id);
  if (slot < 0) {
    if (Load(&table_[id]) != 0) ++corrupt_;
    return nullptr;
  }
  const Record* record = RecordAt(slot);
  bool good = Load(&record->id) == static_cast<uint64_t>(id);
  if (good && !checked_[id].load(std::memory_order_relaxed)) {
    good = IsWhole(id, slot);
    checked_[id].store(good, std::memory_order_relaxed);
  }
  // The slot may just have been given to another sample, which is no damage.
  if (!good && SlotOf(id) == slot) ++corrupt_;
  return good ? record : nullptr;
}

bool Store::Count(bool found, int64_t bytes) {
  ++(found ? hits_ : misses_);
  if (found) bytes_read_ += bytes;
  return found;
}

// A line of each page: where in memory a page is takes longer to find than its other lines to fetch. Of large
// samples the first pages only: the processor forgets the others before they are used.
void Store::Prefetch(int64_t id) const {
  if (id < 0 || id >= samples_) return;
  const int64_t slot = SlotOf(id);
  if (slot < 0) return;
  __builtin_prefetch(&checked_[id]);
  const char* record = reinterpret_cast<const char*>(RecordAt(slot));
  for (int64_t at = 0; at < std::min(stride_, kPrefetched); at += kPage) __builtin_prefetch(record + at);
}

bool Store::Get(int64_t id, const std::vector<Piece>& pieces, int64_t next) {
  if (id < 0 || id >= samples_ || truncated_) return Count(false, 0);
  bool found = false;
  const bool there = Guarded([&] {
    Prefetch(next);
    const Record* record = Find(id);
    if (record == nullptr) return;
    const char* payload = reinterpret_cast<const char*>(record + 1);
    for (const Piece& piece : pieces) std::memcpy(piece.data, payload + piece.offset, piece.bytes);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    // A slot's next owner takes its id away before writing: what was copied is whole if it is still there.
    found = Load(&record->id) == static_cast<uint64_t>(id);
  });
  if (!there) truncated_ = true;
  return Count(there && found, payload_bytes_);
}

bool Store::Get(int64_t id, std::string* data) {
  if (id < 0 || id >= samples_ || truncated_) return Count(false, 0);
  const Record* record = nullptr;
  uint64_t bytes = 0;
  bool there = Guarded([&] {
    record = Find(id);
    if (record != nullptr) bytes = std::min<uint64_t>(Load(&record->payload_bytes), payload_bytes_);
  });
  bool found = false;
  if (there && record != nullptr) {
    data->resize(bytes);
    char* to = data->data();
    there = Guarded([&] {
      std::memcpy(to, record + 1, bytes);
      __atomic_thread_fence(__ATOMIC_ACQUIRE);
      found = Load(&record->id) == static_cast<uint64_t>(id);
    });
  }
  if (!there) truncated_ = true;
  return Count(there && found, bytes);
}

std::vector<int64_t> Store::Unread(const int64_t* ids, int64_t n) {
  std::vector<std::pair<int64_t, int64_t>> found;  // slot, id
  const bool there = truncated_ || Guarded([&] {
    for (int64_t i = 0; i < n; ++i) {
      if (ids[i] < 0 || ids[i] >= samples_ || checked_[ids[i]].load(std::memory_order_relaxed)) continue;
      const int64_t slot = SlotOf(ids[i]);
      if (slot >= 0) found.emplace_back(slot, ids[i]);
    }
  });
  if (!there) truncated_ = true;
  if (truncated_) return {};
  std::sort(found.begin(), found.end());
  std::vector<int64_t> unread;
  for (const auto& [slot, id] : found) unread.push_back(id);
  return unread;
}

void Store::Examine(int64_t id) {
  if (id < 0 || id >= samples_ || truncated_) return;
  const bool there = Guarded([&] {
    const int64_t slot = SlotOf(id);
    if (slot >= 0) checked_[id].store(IsWhole(id, slot), std::memory_order_relaxed);
  });
  if (!there) truncated_ = true;
}

bool Store::full() {
  bool full = true;
  if (!Guarded([&] { full = Used() >= Load(&header_->capacity); })) truncated_ = true;
  return full;
}

int64_t Store::Verify() {
  int64_t damaged = 0;
  for (int64_t id = 0; id < samples_ && !truncated_; ++id) {
    bool whole = true;
    const bool there = Guarded([&] {
      if (Load(&table_[id]) == 0) return;
      const int64_t slot = SlotOf(id);
      whole = slot >= 0 && IsWhole(id, slot);
    });
    if (!there) truncated_ = true;
    damaged += !whole;
  }
  return damaged;
}

Stats Store::stats() {
  int64_t stored = 0, capacity = 0;
  const auto count = [&] {
    for (int64_t id = 0; id < samples_; ++id) stored += Load(&table_[id]) != 0;
    capacity = header_->capacity;
  };
  if (truncated_ || !Guarded(count)) {
    truncated_ = true;
    stored = capacity = 0;
  }
  return {samples_, payload_bytes_, capacity, stored,    hits_,
          misses_,  bytes_read_,    put_,     rejected_, corrupt_};
}

}  // namespace datacache
