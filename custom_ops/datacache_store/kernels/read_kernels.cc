// Operations that read files of the central storage through their local copies.

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "custom_ops/datacache_store/copy.h"
#include "custom_ops/datacache_store/kernels/scalars.h"
#include "custom_ops/datacache_store/kernels/source_file.h"
#include "custom_ops/datacache_store/record.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace tensorflow {
namespace {

using datacache::Reader;
using datacache::SourceFile;

constexpr int kReadThreads = 32;
constexpr uint64_t kWindow = 1 << 20;  // that records are looked for in

SourceFile FileOf(OpKernelContext* context) {
  return SourceFile(context->input(0).scalar<tstring>()(), context->input(1).scalar<tstring>()(),
                    context->input(2).scalar<int64_t>()());
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
      try {
        context->SetStatus(Read(context));
      } catch (const std::bad_alloc&) {  // which would end the process
        context->SetStatus(absl::ResourceExhaustedError(absl::StrCat(
            "no memory was left to read ", context->input(0).scalar<tstring>()(), " in one piece")));
      }
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

// Where the records of a file of `size` bytes begin, and where the last one ends.
absl::Status Index(const std::string& original, uint64_t size, const Reader& read,
                   std::vector<int64_t>* offsets) {
  *offsets = {0};
  std::string window;
  uint64_t at = 0, window_begin = 0;
  while (at < size) {
    if (at < window_begin || at + datacache::kHeader > window_begin + window.size()) {
      window_begin = at;
      TF_RETURN_IF_ERROR(read(at, std::min(size - at, kWindow), &window));
    }
    const int64_t length = datacache::DataLength(std::string_view(window).substr(at - window_begin));
    const uint64_t record = datacache::kFraming + static_cast<uint64_t>(length);
    if (length < 0 || record > size - at) {
      return errors::DataLoss(original, " has no TFRecord at byte ", at,
                              ": it is damaged, compressed, or no TFRecord file.");
    }
    at += record;
    offsets->push_back(at);
  }
  return absl::OkStatus();
}

// Reads the file once, front to back where there is no copy: seeking in a remote file costs more.
class RecordIndexOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckScalars(context));
    const std::string original = context->input(0).scalar<tstring>()();
    std::vector<int64_t> offsets;
    const auto index = [&](uint64_t size, const Reader& read) {
      return Index(original, size, read, &offsets);
    };
    OP_REQUIRES_OK(context, FileOf(context).Scan(index));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(offsets.size())}, &output));
    std::copy(offsets.begin(), offsets.end(), output->flat<int64_t>().data());
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
        datacache::CheckCopy(context->input(0).scalar<tstring>()()) == datacache::CopyState::kGood;
  }
};

class ReadStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const datacache::ReadStats& c = datacache::Counters();
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
