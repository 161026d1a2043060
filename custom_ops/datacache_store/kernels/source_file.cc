#include "custom_ops/datacache_store/kernels/source_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "custom_ops/datacache_store/clock.h"
#include "custom_ops/datacache_store/copy.h"
#include "custom_ops/datacache_store/kernels/waiting.h"
#include "custom_ops/datacache_store/lock.h"
#include "custom_ops/datacache_store/record.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"

namespace datacache {
namespace {

using tensorflow::Env;
using tensorflow::RandomAccessFile;
namespace errors = tensorflow::errors;

constexpr int64_t kBlock = 8 << 20;
constexpr int64_t kFirstBlock = 256 << 10;  // of a copy: memory for more takes longer than most images

absl::Status Open(const std::string& original, std::unique_ptr<RandomAccessFile>* file) {
  const Waiting waiting(original);
  return Env::Default()->NewRandomAccessFile(original, file);
}

absl::Status SizeOf(const std::string& original, uint64_t* size) {
  const Waiting waiting(original);
  return Env::Default()->GetFileSize(original, size);
}

// Bytes [offset, offset + length) of a file, fewer at its end. Counts what the central storage costs.
absl::Status ReadPart(const std::string& original, RandomAccessFile* file, int64_t offset, int64_t length,
                      std::string* data) {
  const int64_t begin = Microseconds();
  data->resize(length);
  absl::string_view read;
  const absl::Status status = [&] {
    const Waiting waiting(original);
    return file->Read(offset, length, &read, data->data());
  }();
  if (!status.ok() && !absl::IsOutOfRange(status)) return status;
  if (read.data() != data->data()) std::memmove(data->data(), read.data(), read.size());
  data->resize(read.size());
  Counters().original_microseconds += Microseconds() - begin;
  Counters().original_bytes += data->size();
  return absl::OkStatus();
}

// ReadCopy(), and counts what it costs.
CopyState ReadPartOfCopy(const std::string& copy, uint64_t stamp, int64_t offset, int64_t length,
                         std::string* data, int64_t most = INT64_MAX) {
  const int64_t begin = Microseconds();
  const CopyState state = ReadCopy(copy, stamp, offset, length, data, most);
  Counters().local_microseconds += Microseconds() - begin;
  if (state == CopyState::kGood) Counters().local_bytes += data->size();
  return state;
}

// In `same` whether size and time of change of a file are those of `stamp`. datacache/source.py computes the same.
absl::Status HasStamp(const std::string& original, uint64_t stamp, bool* same) {
  const Waiting waiting(original);
  uint64_t size, changed;
  if (original.find("://") == std::string::npos) {
    struct stat status;  // TensorFlow's own Stat knows whole seconds only
    if (stat(original.c_str(), &status) != 0) return tensorflow::errors::IOError(original, errno);
    size = status.st_size;
    changed = status.st_mtim.tv_sec * uint64_t{1000000000} + status.st_mtim.tv_nsec;
  } else {
    tensorflow::FileStatistics status;
    TF_RETURN_IF_ERROR(Env::Default()->Stat(original, &status));
    size = status.length;
    changed = status.mtime_nsec;
  }
  *same = (size * 0x9e3779b97f4a7c15u + changed) >> 1 == stamp;
  return absl::OkStatus();
}

// The same, but keeps that it is so for a second: who reads record by record is not to ask the storage each time.
absl::Status HadStamp(const std::string& original, uint64_t stamp, bool* same) {
  static std::mutex* mutex = new std::mutex;
  static auto* asked = new std::map<std::pair<std::string, uint64_t>, int64_t>;
  const int64_t now = Microseconds();
  {
    std::lock_guard<std::mutex> guard(*mutex);
    const auto found = asked->find({original, stamp});
    *same = found != asked->end() && now - found->second < 1000000;
    if (*same) return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(HasStamp(original, stamp, same));
  std::lock_guard<std::mutex> guard(*mutex);
  if (*same) (*asked)[{original, stamp}] = now;
  return absl::OkStatus();
}

// Directories that this process does not try to write to again, a copy having failed there.
bool WithoutRoom(const std::string& directory, bool add) {
  static std::mutex* mutex = new std::mutex;
  static auto* directories = new std::set<std::string>;
  std::lock_guard<std::mutex> guard(*mutex);
  if (add) directories->insert(directory);
  return directories->count(directory) > 0;
}

}  // namespace

ReadStats& Counters() {
  static ReadStats* counters = new ReadStats;
  return *counters;
}

absl::Status SourceFile::Read(int64_t offset, int64_t length, bool record, std::string* data) const {
  if (offset < 0 || length < 0) {
    return errors::InvalidArgument("offset ", offset, " and length ", length, " of a part of ", original_,
                                   ": neither may be negative");
  }
  // One try with the copy that is there, and one with a new one.
  for (int attempt = 0; attempt < 2 && !copy_.empty(); ++attempt) {
    if (ReadCopy(offset, length, record, data)) {
      ++Counters().local_reads;
      Counters().local_hits += attempt == 0;
      return absl::OkStatus();
    }
    if (attempt == 0) TF_RETURN_IF_ERROR(Renew());
  }
  return ReadOriginal(offset, length, record, data);
}

absl::Status SourceFile::ReadOriginal(int64_t offset, int64_t length, bool record, std::string* data) const {
  std::unique_ptr<RandomAccessFile> file;
  TF_RETURN_IF_ERROR(Open(original_, &file));
  ++Counters().original_reads;
  if (length > kBlock) {  // no memory for what is not there; of less the size is not worth asking
    uint64_t size;
    TF_RETURN_IF_ERROR(SizeOf(original_, &size));
    const uint64_t end = static_cast<uint64_t>(offset) + static_cast<uint64_t>(length);
    if (end > size) return Damaged(offset, length);
  }
  // All of a file is asked for with one byte more: it must not have grown.
  const int64_t more = record ? 0 : 1;
  for (int attempt = 0; attempt < 2; ++attempt) {
    TF_RETURN_IF_ERROR(ReadPart(original_, file.get(), offset, length + more, data));
    if (static_cast<int64_t>(data->size()) == length && (!record || Unframe(data))) {
      // What has the same length, and a record's crc, may be of another file. Of a file that is read record by
      // record it is asked now and then.
      bool same;
      TF_RETURN_IF_ERROR((record ? HadStamp : HasStamp)(original_, stamp_, &same));
      return same ? absl::OkStatus() : Changed();
    }
    LOG(WARNING) << "datacache: damaged data at byte " << offset << " of " << original_ << ", "
                 << (attempt == 0 ? "reading it again" : "twice");
    ++Counters().damaged;
  }
  return Damaged(offset, length);
}

// Whether the copy had it. What is damaged or outdated is removed.
bool SourceFile::ReadCopy(int64_t offset, int64_t length, bool record, std::string* data) const {
  // All of a file: its copy must not be longer.
  CopyState state = record ? ReadPartOfCopy(copy_, stamp_, offset, length, data)
                           : ReadPartOfCopy(copy_, stamp_, offset, -1, data, length);
  const int64_t bytes = data->size();
  if (state == CopyState::kGood && !(record ? Unframe(data) : bytes == length)) state = CopyState::kDamaged;
  if (state == CopyState::kDamaged) {
    LOG(WARNING) << "datacache: the local copy of " << original_ << " is damaged; copying it again";
    ++Counters().damaged;
  }
  if (state == CopyState::kDamaged || state == CopyState::kOutdated) unlink(copy_.c_str());
  return state == CopyState::kGood;
}

// By its footer alone: this is called under a lock, for which others wait. Damage is noticed where it is read.
bool SourceFile::HasCopy() const {
  std::string nothing;
  return !copy_.empty() && datacache::ReadCopy(copy_, stamp_, 0, 0, &nothing) == CopyState::kGood;
}

// Makes the copy unless another process just has. Without room for it that is no error.
absl::Status SourceFile::Renew() const {
  const std::string directory = copy_.substr(0, copy_.rfind('/'));
  if (WithoutRoom(directory, false)) return absl::OkStatus();
  const auto lock = [&] {
    const Waiting waiting(original_ + ", which another thread or process may be copying");
    return std::make_unique<FileLock>(directory);
  }();
  if (HasCopy()) return absl::OkStatus();
  std::unique_ptr<RandomAccessFile> file;
  TF_RETURN_IF_ERROR(Open(original_, &file));
  ++Counters().original_reads;
  CopyWriter writer(copy_);
  bool written = true;
  std::string data;
  bool more = true;
  for (int64_t at = 0, block = kFirstBlock; written && more; block = std::min(4 * block, kBlock)) {
    TF_RETURN_IF_ERROR(ReadPart(original_, file.get(), at, block, &data));
    written = data.empty() || writer.Append(data.data(), data.size());
    at += data.size();
    more = static_cast<int64_t>(data.size()) == block;  // fewer come at the file's end alone
  }
  bool same = true;
  if (written) TF_RETURN_IF_ERROR(HasStamp(original_, stamp_, &same));
  if (!same) return Changed();
  if (written && writer.Finish(stamp_)) {
    ++Counters().copies;
  } else {
    const int reason = errno;
    WithoutRoom(directory, true);
    LOG_FIRST_N(WARNING, 3) << "datacache: cannot write " << copy_ << ": " << std::strerror(reason)
                            << ". What is not copied yet is read from the central storage.";
  }
  return absl::OkStatus();
}

absl::Status SourceFile::Scan(
    const std::function<absl::Status(uint64_t size, const Reader& read)>& use) const {
  const auto renew = [&] {
    unlink(copy_.c_str());
    return Renew();
  };
  if (!copy_.empty() && !HasCopy()) TF_RETURN_IF_ERROR(renew());
  uint64_t size;
  TF_RETURN_IF_ERROR(SizeOf(original_, &size));
  const auto scan = [&](bool copied) -> absl::Status {
    if (copied) {
      return use(size, [&](int64_t offset, int64_t length, std::string* data) {
        return ReadPartOfCopy(copy_, stamp_, offset, length, data) == CopyState::kGood
                   ? absl::OkStatus()
                   : errors::DataLoss("the local copy of ", original_, " is damaged.");
      });
    }
    std::unique_ptr<RandomAccessFile> file;
    TF_RETURN_IF_ERROR(Open(original_, &file));
    return use(size, [&](int64_t offset, int64_t length, std::string* data) {
      return ReadPart(original_, file.get(), offset, length, data);
    });
  };
  const bool copied = HasCopy();
  const absl::Status status = scan(copied);
  if (!copied || !absl::IsDataLoss(status)) return status;
  TF_RETURN_IF_ERROR(renew());  // which of the two is damaged?
  const bool again = HasCopy();  // it may be the damaged one, where nothing can be deleted
  const absl::Status second = scan(again);
  return again && absl::IsDataLoss(second) ? scan(false) : second;
}

absl::Status SourceFile::Damaged(int64_t offset, int64_t length) const {
  return errors::DataLoss("The ", length, " bytes at ", offset, " of ", original_,
                          " are damaged, or the file was changed after it had been listed. Restore the "
                          "file, or make a new DataCache, which lists the files anew.");
}

absl::Status SourceFile::Changed() const {
  return errors::DataLoss(original_, " was changed after it had been listed. Make a new DataCache, which "
                                     "lists the files anew and begins another store.");
}

}  // namespace datacache
