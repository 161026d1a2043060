// A local copy of a file of the central storage, which can tell whether it is whole and current.
//
// The copy is the file's bytes followed by a footer: crc32c of the bytes, magic, their number, and the
// stamp of the original (whatever number the caller takes for its identity: size, time of change). It
// is written under another name and renamed, so that a copy either is there as a whole or is not.

#ifndef CUSTOM_OPS_DATACACHE_STORE_COPY_H_
#define CUSTOM_OPS_DATACACHE_STORE_COPY_H_

#include <cstdint>
#include <string>

namespace datacache {

// Writes a copy. Append() and Finish() return false with errno when the disk is full or read-only; what
// has been written is removed unless Finish() succeeds.
class CopyWriter {
 public:
  explicit CopyWriter(const std::string& path);
  ~CopyWriter();
  CopyWriter(const CopyWriter&) = delete;
  bool Append(const char* data, int64_t n);
  bool Finish(uint64_t stamp);

 private:
  bool Failed();

  std::string path_, temporary_;
  int fd_;
  int error_ = 0;  // why there is no fd_
  uint32_t crc_ = 0;
  int64_t bytes_ = 0;
};

enum class CopyState { kGood, kAbsent, kOutdated, kDamaged };

// Reads `length` bytes at `offset` of a copy, to its end when length is negative. Reading all of it also
// checks the crc. kOutdated: the stamp is another one. kDamaged, too: the copy has more than `most` bytes.
CopyState ReadCopy(const std::string& path, uint64_t stamp, int64_t offset, int64_t length,
                   std::string* data, int64_t most = INT64_MAX);

// Whether the bytes of a copy are those that were written, whatever its stamp.
CopyState CheckCopy(const std::string& path);

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_COPY_H_
