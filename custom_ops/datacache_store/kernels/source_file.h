// One file of the central storage, read through its local copy and by TensorFlow's file systems.

#ifndef CUSTOM_OPS_DATACACHE_STORE_KERNELS_SOURCE_FILE_H_
#define CUSTOM_OPS_DATACACHE_STORE_KERNELS_SOURCE_FILE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "tensorflow/core/platform/status.h"

namespace datacache {

// What this process has read.
struct ReadStats {
  std::atomic<int64_t> local_reads{0}, local_bytes{0}, original_reads{0}, original_bytes{0};
  std::atomic<int64_t> original_microseconds{0}, copies{0}, damaged{0};
  std::atomic<int64_t> local_hits{0}, local_microseconds{0};
};

ReadStats& Counters();

// Reads bytes [offset, offset + length), fewer at the file's end.
using Reader = std::function<absl::Status(int64_t offset, int64_t length, std::string* data)>;

class SourceFile {
 public:
  // `stamp` is of the file's size and time of change when it was listed. Without a name, there is no copy.
  SourceFile(const std::string& original, const std::string& copy, int64_t stamp)
      : original_(original), copy_(copy), stamp_(static_cast<uint64_t>(stamp)) {}

  // Reads one record and takes its framing off, or all of the file. A damaged copy is made again, a damaged
  // original read again.
  absl::Status Read(int64_t offset, int64_t length, bool record, std::string* data) const;

  // Calls `use` with the file's size and what reads it. Where `use` finds the local copy damaged (DataLoss), the
  // copy is made anew, and `use` is called once more.
  absl::Status Scan(const std::function<absl::Status(uint64_t size, const Reader& read)>& use) const;

 private:
  absl::Status ReadOriginal(int64_t offset, int64_t length, bool record, std::string* data) const;
  bool ReadCopy(int64_t offset, int64_t length, bool record, std::string* data) const;
  bool HasCopy() const;
  absl::Status Renew() const;
  absl::Status Damaged(int64_t offset, int64_t length) const;
  absl::Status Changed() const;

  const std::string original_, copy_;
  const uint64_t stamp_;
};

}  // namespace datacache

#endif  // CUSTOM_OPS_DATACACHE_STORE_KERNELS_SOURCE_FILE_H_
