#include "custom_ops/datacache_store/copy.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "custom_ops/datacache_store/crc32c.h"
#include "custom_ops/datacache_store/write_all.h"

namespace datacache {
namespace {

constexpr uint32_t kFooterMagic = 0x44434631;

struct Footer {
  uint32_t crc;
  uint32_t magic;
  int64_t bytes;
  uint64_t stamp;
};

class File {
 public:
  explicit File(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  bool opened() const { return fd_ >= 0; }
  int64_t size() const {
    struct stat status;
    return fstat(fd_, &status) == 0 ? status.st_size : -1;
  }
  // False when fewer than n bytes are there.
  bool Read(int64_t offset, void* data, int64_t n) const {
    char* to = static_cast<char*>(data);
    while (n > 0) {
      const ssize_t got = pread(fd_, to, n, offset);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      to += got;
      offset += got;
      n -= got;
    }
    return true;
  }

 private:
  const int fd_;
};

bool ReadFooter(const File& file, Footer* footer) {
  const int64_t bytes = file.size() - static_cast<int64_t>(sizeof(Footer));
  return bytes >= 0 && file.Read(bytes, footer, sizeof(Footer)) && footer->magic == kFooterMagic &&
         footer->bytes == bytes;
}

}  // namespace

CopyWriter::CopyWriter(const std::string& path) : path_(path) {
  // Nobody else's: containers that share a directory share process numbers.
  std::random_device random;
  temporary_ = path + ".tmp." + std::to_string(random()) + "." + std::to_string(random());
  fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd_ < 0) error_ = errno;
}

CopyWriter::~CopyWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

bool CopyWriter::Append(const char* data, int64_t n) {
  if (fd_ < 0) return Failed();
  crc_ = Crc32c(crc_, data, n);
  bytes_ += n;
  return WriteAll(fd_, {{const_cast<char*>(data), static_cast<size_t>(n)}}, bytes_ - n);
}

bool CopyWriter::Failed() {
  errno = error_;  // others have been called since it was opened
  return false;
}

bool CopyWriter::Finish(uint64_t stamp) {
  if (fd_ < 0) return Failed();
  Footer footer = {crc_, kFooterMagic, bytes_, stamp};
  if (!WriteAll(fd_, {{&footer, sizeof(footer)}}, bytes_) ||
      rename(temporary_.c_str(), path_.c_str()) != 0) {
    return false;
  }
  close(fd_);
  fd_ = -1;
  return true;
}

CopyState ReadCopy(const std::string& path, uint64_t stamp, int64_t offset, int64_t length,
                   std::string* data, int64_t most) {
  const File file(path);
  Footer footer;
  if (!file.opened()) return CopyState::kAbsent;
  if (!ReadFooter(file, &footer) || footer.bytes > most) return CopyState::kDamaged;
  if (footer.stamp != stamp) return CopyState::kOutdated;
  if (length < 0) length = footer.bytes - offset;
  if (offset < 0 || length < 0 || length > footer.bytes - offset) return CopyState::kDamaged;
  data->resize(length);
  if (!file.Read(offset, data->data(), length)) return CopyState::kDamaged;
  const bool whole = offset == 0 && length == footer.bytes;
  return whole && Crc32c(0, data->data(), length) != footer.crc ? CopyState::kDamaged
                                                                : CopyState::kGood;
}

CopyState CheckCopy(const std::string& path) {
  const File file(path);
  Footer footer;
  if (!file.opened()) return CopyState::kAbsent;
  if (!ReadFooter(file, &footer)) return CopyState::kDamaged;
  std::string block;
  uint32_t crc = 0;
  for (int64_t at = 0; at < footer.bytes; at += block.size()) {
    block.resize(std::min<int64_t>(footer.bytes - at, 1 << 20));
    if (!file.Read(at, block.data(), block.size())) return CopyState::kDamaged;
    crc = Crc32c(crc, block.data(), block.size());
  }
  return crc == footer.crc ? CopyState::kGood : CopyState::kDamaged;
}

}  // namespace datacache
