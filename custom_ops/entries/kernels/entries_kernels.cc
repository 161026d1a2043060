// SumEntries and ReplaceEntries on the CPU: they check, allocate or forward, and share the rows out.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "custom_ops/entries/entries.h"
#include "custom_ops/entries/kernels/parallel_for.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/overflow.h"

namespace tensorflow {
namespace {

constexpr int64_t kBlock = 1 << 18;  // elements that a thread clears or copies at a time
constexpr int64_t kSums = 1 << 16;   // and adds up: a second cache holds them

// Copies `from`, or zeros where it is nullptr.
void Fill(OpKernelContext* context, const float* from, int64_t n, float* to) {
  ParallelFor(context, (n + kBlock - 1) / kBlock, kBlock / 2, [=](int64_t block) {
    const int64_t begin = block * kBlock;
    const size_t bytes = std::min(kBlock, n - begin) * sizeof(float);
    if (from == nullptr) {
      std::memset(to + begin, 0, bytes);
    } else {
      std::memcpy(to + begin, from + begin, bytes);
    }
  });
}

// An error that names the first bad index. `places`: of each part of the work its first bad one, or kAllInside.
absl::Status Inside(const Tensor& indices, const std::vector<int64_t>& places, int64_t n) {
  for (const int64_t place : places) {
    if (place == entries::kAllInside) continue;
    return errors::InvalidArgument("indices[", place, "] = ", indices.flat<int32>()(place),
                                   " is not in [0, ", n, "), counted through shape ",
                                   indices.shape().DebugString());
  }
  return absl::OkStatus();
}

// C rows of K entries for each of S vectors of `length` elements, and the vectors one after the other.
struct Sums {
  const float* values;
  const int32_t* indices;
  int64_t shards, rows, count, length;
  float* out;

  int64_t first_of(int64_t shard) const { return shard * rows * count; }
};

// Every block of the vectors on its own. Returns whether all sums are finite.
bool AddByBlocks(OpKernelContext* context, const Sums& sums) {
  const int64_t blocks = (sums.length + kSums - 1) / kSums;  // of a vector
  std::atomic<bool> all_finite{true};
  ParallelFor(context, sums.shards * blocks, kSums + 10 * sums.rows * sums.count / blocks, [&](int64_t block) {
    const int64_t shard = block / blocks, first = sums.first_of(shard), begin = block % blocks * kSums;
    bool finite = true;
    entries::SumBlock(sums.values + first, sums.indices + first, sums.rows, sums.count, begin,
                      std::min(begin + kSums, sums.length), sums.out + shard * sums.length, &finite);
    if (!finite) all_finite = false;
  });
  return all_finite;
}

// Entry after entry, to vectors of zeros. Sets for each vector where an index is outside, or kAllInside.
bool AddInOrder(OpKernelContext* context, const Sums& sums, std::vector<int64_t>* outside) {
  std::atomic<bool> all_finite{true};
  ParallelFor(context, sums.shards, 10 * sums.rows * sums.count, [&](int64_t shard) {
    bool finite = true;
    for (int64_t row = 0; row < sums.rows && (*outside)[shard] == entries::kAllInside; ++row) {
      const int64_t begin = sums.first_of(shard) + row * sums.count;
      const int64_t stopped = entries::Add(sums.values + begin, sums.indices + begin, sums.count, sums.length,
                                           sums.out + shard * sums.length, &finite);
      if (stopped != entries::kAllInside) (*outside)[shard] = begin + stopped;
    }
    if (!finite) all_finite = false;
  });
  return all_finite;
}

class SumEntriesOp : public OpKernel {
 public:
  explicit SumEntriesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("length", &length_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& indices = context->input(1);
    OP_REQUIRES(context, values.dims() == 3 && values.shape() == indices.shape(),
                errors::InvalidArgument("values has shape ", values.shape().DebugString(), " and indices ",
                                        indices.shape().DebugString(), "; both must be [S, C, K]."));
    const int64_t shards = values.dim_size(0), rows = values.dim_size(1), count = values.dim_size(2);
    Tensor* total = nullptr;
    Tensor* finite = nullptr;
    TensorShape shape;
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(MultiplyWithoutOverflow(shards, length_)));
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &total));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &finite));
    const Sums sums = {values.flat<float>().data(), indices.flat<int32>().data(), shards, rows, count, length_,
                       total->flat<float>().data()};
    const bool some = indices.NumElements() > 0;  // of however many shards
    if (some && entries::Rise(sums.indices, shards * rows, count, length_)) {
      finite->scalar<bool>()() = AddByBlocks(context, sums);
      return;
    }
    Fill(context, nullptr, total->NumElements(), sums.out);
    std::vector<int64_t> outside(some ? shards : 0, entries::kAllInside);
    finite->scalar<bool>()() = !some || AddInOrder(context, sums, &outside);
    OP_REQUIRES_OK(context, Inside(indices, outside, length_));
  }

 private:
  int64_t length_;
};

class ReplaceEntriesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& rows = context->input(0);
    const Tensor& indices = context->input(1);
    const Tensor& values = context->input(2);
    const bool same = values.dims() == 0;
    OP_REQUIRES(context,
                rows.dims() == 2 && indices.dims() == 2 && rows.dim_size(0) == indices.dim_size(0) &&
                    (same || values.shape() == indices.shape()),
                errors::InvalidArgument("rows has shape ", rows.shape().DebugString(), ", indices ",
                                        indices.shape().DebugString(), " and values ",
                                        values.shape().DebugString(),
                                        "; they must be [R, n], [R, K], and [R, K] or a scalar."));
    const int64_t count = rows.dim_size(0), n = rows.dim_size(1), k = indices.dim_size(1);
    Tensor* replaced = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, rows.shape(), &replaced));
    float* out = replaced->flat<float>().data();
    const float* from = rows.flat<float>().data();
    if (out != from) Fill(context, from, rows.NumElements(), out);
    if (indices.NumElements() == 0) return;  // of however many rows
    const float* value = values.flat<float>().data();
    const int32_t* index = indices.flat<int32>().data();
    std::vector<int64_t> outside(count, entries::kAllInside);
    ParallelFor(context, count, 10 * k, [&](int64_t row) {
      const float* own = same ? value : value + row * k;
      const int64_t stopped = entries::Replace(own, same, index + row * k, k, n, out + row * n);
      if (stopped != entries::kAllInside) outside[row] = row * k + stopped;
    });
    OP_REQUIRES_OK(context, Inside(indices, outside, n));
  }
};

REGISTER_KERNEL_BUILDER(Name("SumEntries").Device(DEVICE_CPU), SumEntriesOp);
REGISTER_KERNEL_BUILDER(Name("ReplaceEntries").Device(DEVICE_CPU), ReplaceEntriesOp);

}  // namespace
}  // namespace tensorflow
