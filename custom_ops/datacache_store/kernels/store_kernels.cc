// The store's operations: they check, allocate, and hand pieces of tensors to it.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/datacache_store/clock.h"
#include "custom_ops/datacache_store/kernels/scalars.h"
#include "custom_ops/datacache_store/kernels/waiting.h"
#include "custom_ops/datacache_store/store.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace {

using datacache::Piece;
using datacache::Store;

// The stores that this process has open, by path: a pipeline names its store by a string, since a resource
// would make its iterators impossible to save.
struct OpenStores {
  struct Entry {
    std::shared_ptr<Store> store;
    ino_t inode;
  };
  std::mutex mutex;
  std::map<std::string, Entry> entries;
};

OpenStores& Opened() {
  static auto* opened = new OpenStores;
  return *opened;
}

// A path that has come to be another file is opened anew.
absl::StatusOr<std::shared_ptr<Store>> OpenStore(const std::string& path) {
  auto& [mutex, entries] = Opened();
  struct stat status;
  const bool exists = stat(path.c_str(), &status) == 0;
  std::lock_guard<std::mutex> guard(mutex);
  const auto found = entries.find(path);
  // A store that was deleted under a running job stays usable until the job ends.
  if (found != entries.end() && (!exists || found->second.inode == status.st_ino)) {
    return found->second.store;
  }
  datacache::Fault fault;
  std::shared_ptr<Store> store = Store::Open(path, &fault);
  if (store == nullptr && !fault.of_file) return errors::ResourceExhausted(fault.text);
  if (store == nullptr) {
    return errors::FailedPrecondition(fault.text, "; delete it (`tss cache clear`) to begin anew.");
  }
  entries[path] = {store, status.st_ino};
  return store;
}

// Says once per store what the user should know of it.
void Warn(const std::string& path, const Store& store) {
  static std::mutex* mutex = new std::mutex;
  static auto* said = new std::set<std::pair<std::string, bool>>;
  if (!store.truncated() && !store.without_room()) return;
  std::lock_guard<std::mutex> guard(*mutex);
  if (!said->insert({path, store.truncated()}).second) return;
  if (store.truncated()) {
    LOG(WARNING) << "datacache: " << path << " has been truncated by somebody; this process uses it no "
                 << "more, and reads and decodes each sample each time. The next run makes it anew.";
  } else {
    LOG(WARNING) << "datacache: no room for more samples at " << path << " although the limit is not "
                 << "reached; they are read and decoded each time";
  }
}

class StoreOp : public OpKernel {
 public:
  explicit StoreOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("path", &path_));
  }

  void Compute(OpKernelContext* context) override {
    const absl::StatusOr<std::shared_ptr<Store>> store = OpenStore(path_);
    OP_REQUIRES_OK(context, store.status());
    ComputeOn(context, store->get());
    Warn(path_, **store);
  }

 protected:
  virtual void ComputeOn(OpKernelContext* context, Store* store) = 0;

  // What a kernel that writes waits for (Waiting): a process may have been stopped while it held the lock.
  std::string OthersThatWrite() const { return "other processes that write to " + path_; }

  // Once for each call that has met more of them.
  void TellDamaged(const Store& store) {
    const int64_t damaged = store.damaged();
    if (damaged > logged_.exchange(damaged)) {
      LOG(WARNING) << "datacache: damaged samples in " << path_ << ", " << damaged
                   << " until now; they are read and decoded again";
    }
  }

  std::string path_;

 private:
  std::atomic<int64_t> logged_{0};
};

// Where component tensors [B, ...] keep their rows, in a sample as well as in memory.
class Rows {
 public:
  void Add(const Tensor& tensor, int64_t batch) {
    const int64_t bytes = batch == 0 ? 0 : tensor.tensor_data().size() / batch;
    char* data = const_cast<char*>(tensor.tensor_data().data());
    components_.push_back({data, payload_bytes_, bytes});
    payload_bytes_ += datacache::AlignUp(bytes, datacache::kAlignment);
  }
  std::vector<Piece> Row(int64_t row) const {
    std::vector<Piece> pieces = components_;
    for (Piece& piece : pieces) piece.data += row * piece.bytes;
    return pieces;
  }
  absl::Status Check(const Store& store, int64_t batch) const {
    if (batch == 0 || payload_bytes_ == store.payload_bytes()) return absl::OkStatus();
    return errors::InvalidArgument("a sample has ", payload_bytes_, " bytes, but the store keeps ",
                                   store.payload_bytes(), ": decode gave another shape or dtype.");
  }

 private:
  std::vector<Piece> components_;
  int64_t payload_bytes_ = 0;
};

// Calls work(begin, end) for parts of `samples` samples to read.
void InThreads(OpKernelContext* context, const Store& store, int64_t samples,
               const std::function<void(int64_t, int64_t)>& work) {
  // Half a megabyte is some 50 us to copy: what a thread must be woken for at least.
  const int64_t block = 1 + (int64_t{1} << 19) / (1 + store.payload_bytes());
  context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(
      samples, thread::ThreadPool::SchedulingParams::Fixed(block), work);
}

class GatherOp : public StoreOp {
 public:
  explicit GatherOp(OpKernelConstruction* context) : StoreOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &shapes_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &types_));
    OP_REQUIRES(context, shapes_.size() == types_.size(),
                errors::InvalidArgument(shapes_.size(), " shapes for ", types_.size(), " types"));
    for (const DataType type : types_) {
      OP_REQUIRES(context, DataTypeCanUseMemcpy(type),
                  errors::InvalidArgument("a store cannot keep ", DataTypeString(type)));
    }
  }

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    const int64_t begin = datacache::Microseconds();
    const auto ids = context->input(0).flat<int64_t>();
    const int64_t batch = ids.size();
    Tensor* found = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch}, &found));
    Rows rows;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      TensorShape shape = shapes_[i];
      shape.InsertDim(0, batch);
      Tensor* values = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i + 1, shape, &values));
      rows.Add(*values, batch);
    }
    OP_REQUIRES_OK(context, rows.Check(*store, batch));
    auto found_flat = found->flat<bool>();
    const auto copy = [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        found_flat(row) = store->Get(ids(row), rows.Row(row), row + 1 < end ? ids(row + 1) : -1);
      }
    };
    InThreads(context, *store, batch, copy);
    store->microseconds += datacache::Microseconds() - begin;
    TellDamaged(*store);
  }

 private:
  std::vector<TensorShape> shapes_;
  DataTypeVector types_;
};

class ExamineOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    const auto ids = context->input(0).flat<int64_t>();
    const std::vector<int64_t> unread = store->Unread(ids.data(), ids.size());
    InThreads(context, *store, unread.size(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) store->Examine(unread[i]);
    });
  }
};

class PutOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    const auto ids = context->input(0).flat<int64_t>();
    const int64_t batch = ids.size();
    Rows rows;
    for (int i = 1; i < context->num_inputs(); ++i) {
      const Tensor& values = context->input(i);
      OP_REQUIRES(context, DataTypeCanUseMemcpy(values.dtype()),
                  errors::InvalidArgument("a store cannot keep ", DataTypeString(values.dtype())));
      OP_REQUIRES(context, values.dims() > 0 && values.dim_size(0) == batch,
                  errors::InvalidArgument("values[", i - 1, "] has shape ",
                                          values.shape().DebugString(), " for ", batch, " ids"));
      rows.Add(values, batch);
      context->set_output(i - 1, values);
    }
    OP_REQUIRES_OK(context, rows.Check(*store, batch));
    std::vector<std::vector<Piece>> pieces;
    for (int64_t row = 0; row < batch; ++row) pieces.push_back(rows.Row(row));
    const datacache::Waiting waiting(OthersThatWrite());
    store->Put({ids.data(), ids.data() + batch}, pieces);
  }
};

class ReleaseOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    const auto ids = context->input(0).flat<int64_t>();
    const datacache::Waiting waiting(OthersThatWrite());
    store->Release({ids.data(), ids.data() + ids.size()});
  }
};

// One encoded sample, of any length.
class FetchOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    const int64_t begin = datacache::Microseconds();
    Tensor *found = nullptr, *data = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &found));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &data));
    std::string read;
    try {
      found->scalar<bool>()() = store->Get(context->input(0).scalar<int64_t>()(), &read);
    } catch (const std::bad_alloc&) {  // which would end the process
      context->CtxFailure(absl::ResourceExhaustedError("no memory was left to read an encoded sample"));
      return;
    }
    if (found->scalar<bool>()()) data->scalar<tstring>()() = read;
    store->microseconds += datacache::Microseconds() - begin;
    TellDamaged(*store);
  }
};

class KeepOp : public StoreOp {
 public:
  explicit KeepOp(OpKernelConstruction* context) : StoreOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("decoded_path", &decoded_path_));
  }

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    context->set_output(0, context->input(1));
    const absl::StatusOr<std::shared_ptr<Store>> decoded = OpenStore(decoded_path_);
    OP_REQUIRES_OK(context, decoded.status());
    const tstring& data = context->input(1).scalar<tstring>()();
    if (!(*decoded)->full() || static_cast<int64_t>(data.size()) > store->payload_bytes()) return;
    const datacache::Waiting waiting(OthersThatWrite());
    store->Put({context->input(0).scalar<int64_t>()()},
               {{{const_cast<char*>(data.data()), 0, static_cast<int64_t>(data.size())}}});
  }

 private:
  std::string decoded_path_;
};

class SetCapacityOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    const datacache::Waiting waiting(OthersThatWrite());
    const bool done = store->SetCapacity(context->input(0).scalar<int64_t>()());
    OP_REQUIRES(context, done || store->truncated(), errors::ResourceExhausted(path_, " cannot be locked"));
    OP_REQUIRES(context, done,
                errors::FailedPrecondition(
                    path_, " has been truncated; delete it (`tss cache clear`) to begin anew."));
  }
};

class KeepOpenOp : public OpKernel {
 public:
  explicit KeepOpenOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("paths", &paths_));
  }

  void Compute(OpKernelContext* context) override {
    auto& [mutex, entries] = Opened();
    std::lock_guard<std::mutex> guard(mutex);
    for (auto entry = entries.begin(); entry != entries.end();) {
      const bool kept = std::find(paths_.begin(), paths_.end(), entry->first) != paths_.end();
      entry = kept ? std::next(entry) : entries.erase(entry);
    }
  }

 private:
  std::vector<std::string> paths_;
};

class StatsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    const datacache::Stats s = store->stats();
    const std::vector<int64_t> numbers = {s.samples, s.payload_bytes, s.capacity, s.stored,   s.hits,
                                          s.misses,  s.bytes_read,    s.put,      s.rejected, s.corrupt,
                                          store->microseconds};
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(numbers.size())}, &output));
    std::copy(numbers.begin(), numbers.end(), output->flat<int64_t>().data());
  }
};

class VerifyOp : public StoreOp {
 public:
  using StoreOp::StoreOp;

 protected:
  void ComputeOn(OpKernelContext* context, Store* store) override {
    Tensor* damaged = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &damaged));
    damaged->scalar<int64_t>()() = store->Verify();
  }
};

class CreateOp : public OpKernel {
 public:
  explicit CreateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("path", &path_));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    const std::string error = Store::Create(path_, context->input(0).scalar<int64_t>()(),
                                            context->input(1).scalar<int64_t>()());
    OP_REQUIRES(context, error.empty(), errors::ResourceExhausted(error));
  }

 private:
  std::string path_;
};

REGISTER_KERNEL_BUILDER(Name("DatacacheGather").Device(DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("DatacachePut").Device(DEVICE_CPU), PutOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheRelease").Device(DEVICE_CPU), ReleaseOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheFetch").Device(DEVICE_CPU), FetchOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheKeep").Device(DEVICE_CPU), KeepOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheSetCapacity").Device(DEVICE_CPU), SetCapacityOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheKeepOpen").Device(DEVICE_CPU), KeepOpenOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheExamine").Device(DEVICE_CPU), ExamineOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheStats").Device(DEVICE_CPU), StatsOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheVerify").Device(DEVICE_CPU), VerifyOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheCreate").Device(DEVICE_CPU), CreateOp);

}  // namespace
}  // namespace tensorflow
