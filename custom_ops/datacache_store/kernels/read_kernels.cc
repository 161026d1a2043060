// Reading the central storage through local copies, by TensorFlow's file systems.

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/datacache_store/clock.h"
#include "custom_ops/datacache_store/copy.h"
#include "custom_ops/datacache_store/crc32c.h"
#include "custom_ops/datacache_store/kernels/waiting.h"
#include "custom_ops/datacache_store/lock.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace tensorflow {
namespace {

using datacache::CopyState;
using datacache::Waiting;

constexpr int64_t kBlock = 8 << 20;
constexpr int kReadThreads = 32;
constexpr int64_t kFraming = 16;  // of a record: length, its crc, [data], the data's crc

// Of this process.
struct ReadStats {
  std::atomic<int64_t> local_reads{0}, local_bytes{0}, original_reads{0}, original_bytes{0};
  std::atomic<int64_t> original_microseconds{0}, copies{0}, damaged{0};
  std::atomic<int64_t> local_hits{0}, local_microseconds{0};
};

ReadStats& Counters() {
  static ReadStats* counters = new ReadStats;
  return *counters;
}

absl::Status OpenOriginal(const std::string& path, std::unique_ptr<RandomAccessFile>* file) {
  const Waiting waiting(path);
  return Env::Default()->NewRandomAccessFile(path, file);
}

// Bytes [offset, offset + length) of a file, fewer at its end. Counts what the central storage costs.
absl::Status ReadOriginal(const std::string& path, RandomAccessFile* file, int64_t offset, int64_t length,
                          std::string* data) {
  const int64_t begin = datacache::Microseconds();
  data->resize(length);
  absl::string_view read;
  const absl::Status status = [&] {
    const Waiting waiting(path);
    return file->Read(offset, length, &read, data->data());
  }();
  if (!status.ok() && !absl::IsOutOfRange(status)) return status;
  if (read.data() != data->data()) std::memmove(data->data(), read.data(), read.size());
  data->resize(read.size());
  Counters().original_microseconds += datacache::Microseconds() - begin;
  Counters().original_bytes += data->size();
  return absl::OkStatus();
}

// datacache::ReadCopy(), and counts what it costs.
CopyState ReadLocal(const std::string& copy, uint64_t stamp, int64_t offset, int64_t length,
                    std::string* data, int64_t most = INT64_MAX) {
  const int64_t begin = datacache::Microseconds();
  const CopyState state = datacache::ReadCopy(copy, stamp, offset, length, data, most);
  Counters().local_microseconds += datacache::Microseconds() - begin;
  if (state == CopyState::kGood) Counters().local_bytes += data->size();
  return state;
}

uint64_t Decode(const char* data, int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, data, bytes);
  return value;
}

// The identity of a file's content as far as size and time of change tell; -1 where neither is known.
// datacache/source.py computes the same.
int64_t StampOf(const std::string& path) {
  const Waiting waiting(path);
  uint64_t size, changed;
  if (path.find("://") == std::string::npos) {
    struct stat status;  // TensorFlow's own Stat knows whole seconds only
    if (stat(path.c_str(), &status) != 0) return -1;
    size = status.st_size;
    changed = status.st_mtim.tv_sec * uint64_t{1000000000} + status.st_mtim.tv_nsec;
  } else {
    FileStatistics status;
    if (!Env::Default()->Stat(path, &status).ok()) return -1;
    size = status.length;
    changed = status.mtime_nsec;
  }
  return static_cast<int64_t>((size * 0x9e3779b97f4a7c15u + changed) >> 1);
}

// Whether a file is what it was when it was listed. Asks the storage, but not again within a second.
bool IsAsListed(const std::string& path, uint64_t stamp) {
  static std::mutex* mutex = new std::mutex;
  static auto* asked = new std::map<std::pair<std::string, uint64_t>, int64_t>;
  const int64_t now = datacache::Microseconds();
  {
    std::lock_guard<std::mutex> guard(*mutex);
    const auto found = asked->find({path, stamp});
    if (found != asked->end() && now - found->second < 1000000) return true;
  }
  if (StampOf(path) != static_cast<int64_t>(stamp)) return false;
  std::lock_guard<std::mutex> guard(*mutex);
  (*asked)[{path, stamp}] = now;
  return true;
}

// Whether `data` begins with a record's length and the length's crc.
bool HasHeader(absl::string_view data) {
  return data.size() >= 12 &&
         Decode(&data[8], 4) == datacache::MaskedCrc32c(datacache::Crc32c(0, data.data(), 8));
}

// Takes the framing off one record; false where it is damaged.
bool Unframe(std::string* data) {
  if (!HasHeader(*data) || data->size() < kFraming) return false;
  const size_t n = data->size() - kFraming;
  if (n != Decode(data->data(), 8)) return false;
  if (Decode(&(*data)[12 + n], 4) !=
      datacache::MaskedCrc32c(datacache::Crc32c(0, &(*data)[12], n))) {
    return false;
  }
  *data = data->substr(12, n);
  return true;
}

// Directories that this process does not try to write to again, a copy having failed there.
bool WithoutRoom(const std::string& directory, bool add) {
  static std::mutex* mutex = new std::mutex;
  static auto* directories = new std::set<std::string>;
  std::lock_guard<std::mutex> guard(*mutex);
  if (add) directories->insert(directory);
  return directories->count(directory) > 0;
}

// One file of the central storage and its local copy.
class SourceFile {
 public:
  SourceFile(const std::string& original, const std::string& copy, int64_t stamp)
      : original_(original), copy_(copy), stamp_(static_cast<uint64_t>(stamp)) {}

  absl::Status Read(int64_t offset, int64_t length, bool record, std::string* data) {
    if (offset < 0 || length < 0) {
      return errors::InvalidArgument("offset ", offset, " and length ", length, " of a part of ", original_,
                                     ": neither may be negative");
    }
    // One try with the copy that is there, and one with a new one.
    for (int attempt = 0; attempt < 2 && !copy_.empty(); ++attempt) {
      if (ReadCopy(offset, length, record, data) == CopyState::kGood) {
        ++Counters().local_reads;
        Counters().local_hits += attempt == 0;
        return absl::OkStatus();
      }
      if (attempt == 0) TF_RETURN_IF_ERROR(Renew());
    }
    std::unique_ptr<RandomAccessFile> file;
    TF_RETURN_IF_ERROR(OpenOriginal(original_, &file));
    ++Counters().original_reads;
    if (length > kBlock) {  // no memory for what is not there; of less the size is not worth asking
      uint64_t size;
      {
        const Waiting waiting(original_);
        TF_RETURN_IF_ERROR(Env::Default()->GetFileSize(original_, &size));
      }
      const uint64_t end = static_cast<uint64_t>(offset) + static_cast<uint64_t>(length);
      if (end > size) return Damaged(offset, length);
    }
    // All of a file is asked for with one byte more: it must not have grown.
    const int64_t more = record ? 0 : 1;
    for (int attempt = 0; attempt < 2; ++attempt) {
      TF_RETURN_IF_ERROR(ReadOriginal(original_, file.get(), offset, length + more, data));
      if (static_cast<int64_t>(data->size()) == length && (!record || Unframe(data))) {
        // What has the same length, and a record's crc, may be of another file. Of a file that is read record
        // by record it is asked now and then.
        const bool same = record ? IsAsListed(original_, stamp_)
                                 : StampOf(original_) == static_cast<int64_t>(stamp_);
        return same ? absl::OkStatus() : Changed();
      }
      LOG(WARNING) << "datacache: damaged data at byte " << offset << " of " << original_ << ", "
                   << (attempt == 0 ? "reading it again" : "twice");
      ++Counters().damaged;
    }
    return Damaged(offset, length);
  }

  // Makes the copy unless another process just has. Without room for it that is no error.
  absl::Status Renew() {
    const std::string directory = copy_.substr(0, copy_.rfind('/'));
    if (WithoutRoom(directory, false)) return absl::OkStatus();
    const auto lock = [&] {
      const Waiting waiting(original_ + ", which another thread or process may be copying");
      return std::make_unique<datacache::FileLock>(directory);
    }();
    std::string data;
    // By its footer: who holds the lock keeps others waiting, and damage is noticed where it is read.
    if (datacache::ReadCopy(copy_, stamp_, 0, 0, &data) == CopyState::kGood) return absl::OkStatus();
    std::unique_ptr<RandomAccessFile> file;
    TF_RETURN_IF_ERROR(OpenOriginal(original_, &file));
    ++Counters().original_reads;
    datacache::CopyWriter writer(copy_);
    bool written = true;
    for (int64_t at = 0; written; at += data.size()) {
      TF_RETURN_IF_ERROR(ReadOriginal(original_, file.get(), at, kBlock, &data));
      if (data.empty()) break;
      written = writer.Append(data.data(), data.size());
    }
    if (written && StampOf(original_) != static_cast<int64_t>(stamp_)) {
      return Changed();
    }
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

 private:
  absl::Status Damaged(int64_t offset, int64_t length) const {
    return errors::DataLoss("The ", length, " bytes at ", offset, " of ", original_,
                            " are damaged, or the file was changed after it had been listed. Restore the "
                            "file, or make a new DataCache, which lists the files anew.");
  }

  absl::Status Changed() const {
    return errors::DataLoss(original_, " was changed after it had been listed. Make a new DataCache, which "
                                       "lists the files anew and begins another store.");
  }

  CopyState ReadCopy(int64_t offset, int64_t length, bool record, std::string* data) {
    // All of a file: its copy must not be longer.
    CopyState state = record ? ReadLocal(copy_, stamp_, offset, length, data)
                             : ReadLocal(copy_, stamp_, offset, -1, data, length);
    const int64_t bytes = data->size();
    const bool good = record ? Unframe(data) : bytes == length;
    if (state == CopyState::kGood && !good) state = CopyState::kDamaged;
    if (state == CopyState::kDamaged || state == CopyState::kOutdated) {
      if (state == CopyState::kDamaged) {
        LOG(WARNING) << "datacache: the local copy of " << original_ << " is damaged; copying it again";
        ++Counters().damaged;
      }
      unlink(copy_.c_str());
    }
    return state;
  }

  const std::string original_, copy_;
  const uint64_t stamp_;
};

SourceFile FileOf(OpKernelContext* context) {
  return SourceFile(context->input(0).scalar<tstring>()(), context->input(1).scalar<tstring>()(),
                    context->input(2).scalar<int64_t>()());
}

absl::Status CheckScalars(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input(i).NumElements() != 1) {
      return errors::InvalidArgument("input ", i, " has shape ", context->input(i).shape().DebugString(),
                                     "; all must be scalars");
    }
  }
  return absl::OkStatus();
}

// Waits for the storage in threads of its own: tf.data has as many as the machine has cores, which is few
// where the storage answers slowly.
class ReadOp : public AsyncOpKernel {
 public:
  explicit ReadOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("record", &record_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    static auto* threads = new thread::ThreadPool(Env::Default(), "datacache_read", kReadThreads);
    threads->Schedule([this, context, done] {
      context->SetStatus(Read(context));
      done();
    });
  }

 private:
  absl::Status Read(OpKernelContext* context) {
    TF_RETURN_IF_ERROR(CheckScalars(context));
    std::string data;
    TF_RETURN_IF_ERROR(FileOf(context).Read(context->input(3).scalar<int64_t>()(),
                                            context->input(4).scalar<int64_t>()(), record_, &data));
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &output));
    output->scalar<tstring>()() = data;
    return absl::OkStatus();
  }

  bool record_;
};

// Reads the file once, front to back where there is no copy: seeking in a remote file costs more.
class RecordIndexOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    const std::string original = context->input(0).scalar<tstring>()();
    const std::string copy = context->input(1).scalar<tstring>()();
    const uint64_t stamp = static_cast<uint64_t>(context->input(2).scalar<int64_t>()());
    const auto copied = [&] {
      std::string nothing;
      return !copy.empty() && datacache::ReadCopy(copy, stamp, 0, 0, &nothing) == CopyState::kGood;
    };
    const auto renew = [&] {
      unlink(copy.c_str());
      return FileOf(context).Renew();
    };
    if (!copy.empty() && !copied()) OP_REQUIRES_OK(context, renew());
    uint64_t size;
    {
      const Waiting waiting(original);
      OP_REQUIRES_OK(context, Env::Default()->GetFileSize(original, &size));
    }
    std::vector<int64_t> offsets;
    const auto index = [&](bool local) -> absl::Status {
      if (local) {
        return Index(original, size, &offsets, [&](int64_t at, int64_t length, std::string* window) {
          return ReadLocal(copy, stamp, at, length, window) == CopyState::kGood
                     ? absl::OkStatus()
                     : errors::DataLoss("the local copy of ", original, " is damaged.");
        });
      }
      std::unique_ptr<RandomAccessFile> file;
      TF_RETURN_IF_ERROR(OpenOriginal(original, &file));
      return Index(original, size, &offsets, [&](int64_t at, int64_t length, std::string* window) {
        return ReadOriginal(original, file.get(), at, length, window);
      });
    };
    const bool local = copied();
    absl::Status status = index(local);
    if (absl::IsDataLoss(status) && local) {  // which of the two is damaged?
      OP_REQUIRES_OK(context, renew());
      status = index(copied());
    }
    OP_REQUIRES_OK(context, status);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(offsets.size())}, &output));
    std::copy(offsets.begin(), offsets.end(), output->flat<int64_t>().data());
  }

 private:
  using Reader = std::function<absl::Status(int64_t offset, int64_t length, std::string* data)>;

  // Where the records of a file of `size` bytes begin, and where the last one ends.
  static absl::Status Index(const std::string& original, uint64_t size, std::vector<int64_t>* offsets,
                            const Reader& read) {
    *offsets = {0};
    std::string window;
    uint64_t at = 0, window_begin = 0;
    while (at < size) {
      if (at < window_begin || at + 12 > window_begin + window.size()) {
        window_begin = at;
        const uint64_t length = std::min<uint64_t>(size - at, 1 << 20);
        TF_RETURN_IF_ERROR(read(at, length, &window));
      }
      const absl::string_view rest = absl::string_view(window).substr(at - window_begin);
      const uint64_t end = HasHeader(rest) ? at + kFraming + Decode(rest.data(), 8) : size + 1;
      if (end < at + kFraming || end > size) {  // lengths may be such that they overflow
        return errors::DataLoss(original, " has no TFRecord at byte ", at,
                                ": it is damaged, compressed, or no TFRecord file.");
      }
      offsets->push_back(end);
      at = end;
    }
    return absl::OkStatus();
  }
};

class CheckCopyOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &output));
    output->scalar<bool>()() =
        datacache::CheckCopy(context->input(0).scalar<tstring>()()) == CopyState::kGood;
  }
};

class ReadStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const ReadStats& c = Counters();
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {9}, &output));
    auto numbers = output->flat<int64_t>();
    int i = 0;
    for (const auto* counter : {&c.local_reads, &c.local_bytes, &c.original_reads, &c.original_bytes,
                                &c.original_microseconds, &c.copies, &c.damaged, &c.local_hits,
                                &c.local_microseconds}) {
      numbers(i++) = *counter;
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("DatacacheRead").Device(DEVICE_CPU), ReadOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheRecordIndex").Device(DEVICE_CPU), RecordIndexOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheCheckCopy").Device(DEVICE_CPU), CheckCopyOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheReadStats").Device(DEVICE_CPU), ReadStatsOp);

}  // namespace
}  // namespace tensorflow
