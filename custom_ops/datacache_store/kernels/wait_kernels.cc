// How long those who iterate over datasets wait for batches.

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/datacache_store/clock.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tensorflow {
namespace data {
namespace {

// How long consumers waited for batches, by cache.
struct Waits {
  std::atomic<int64_t> batches{0}, microseconds{0};
};

Waits& WaitsOf(const std::string& cache) {
  static std::mutex* mutex = new std::mutex;
  static auto* all = new std::map<std::string, std::unique_ptr<Waits>>;
  std::lock_guard<std::mutex> guard(*mutex);
  std::unique_ptr<Waits>& waits = (*all)[cache];
  if (waits == nullptr) waits = std::make_unique<Waits>();
  return *waits;
}

// Hands on the elements of another dataset, and counts how long it waits for them.
class TimedDatasetOp : public UnaryDatasetOpKernel {
 public:
  explicit TimedDatasetOp(OpKernelConstruction* context) : UnaryDatasetOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("cache", &cache_));
  }

 protected:
  void MakeDataset(OpKernelContext* context, DatasetBase* input, DatasetBase** output) override {
    *output = new Dataset(context, input, cache_);
  }

 private:
  class Dataset : public DatasetBase {
   public:
    Dataset(OpKernelContext* context, const DatasetBase* input, const std::string& cache)
        : DatasetBase(DatasetContext(context)), input_(input), cache_(cache), waits_(&WaitsOf(cache)) {
      input_->Ref();
    }
    ~Dataset() override { input_->Unref(); }

    const DataTypeVector& output_dtypes() const override { return input_->output_dtypes(); }
    const std::vector<PartialTensorShape>& output_shapes() const override { return input_->output_shapes(); }
    std::string DebugString() const override { return "DatacacheTimedDataset"; }
    int64_t CardinalityInternal(CardinalityOptions options) const override {
      return input_->Cardinality(options);
    }
    absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
      inputs->push_back(input_);
      return absl::OkStatus();
    }
    absl::Status CheckExternalState() const override { return input_->CheckExternalState(); }

    std::unique_ptr<IteratorBase> MakeIteratorInternal(const std::string& prefix) const override {
      return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::DatacacheTimed"});
    }

   protected:
    absl::Status AsGraphDefInternal(SerializationContext* context, DatasetGraphDefBuilder* builder,
                                    Node** output) const override {
      Node* input = nullptr;
      TF_RETURN_IF_ERROR(builder->AddInputDataset(context, input_, &input));
      AttrValue cache;
      builder->BuildAttrValue(cache_, &cache);
      return builder->AddDataset(this, {input}, {{"cache", cache}}, output);
    }

   private:
    class Iterator : public DatasetIterator<Dataset> {
     public:
      using DatasetIterator<Dataset>::DatasetIterator;

      bool SymbolicCheckpointCompatible() const override { return true; }

      absl::Status Initialize(IteratorContext* context) override {
        return dataset()->input_->MakeIterator(context, this, prefix(), &input_);
      }

      absl::Status GetNextInternal(IteratorContext* context, std::vector<Tensor>* element, bool* end) override {
        const int64_t begin = datacache::Microseconds();
        TF_RETURN_IF_ERROR(input_->GetNext(context, element, end));
        if (*end) return absl::OkStatus();
        ++dataset()->waits_->batches;
        dataset()->waits_->microseconds += datacache::Microseconds() - begin;
        return absl::OkStatus();
      }

     protected:
      std::shared_ptr<model::Node> CreateNode(IteratorContext* context, model::Node::Args args) const override {
        return model::MakeKnownRatioNode(std::move(args), /*ratio=*/1);
      }

      absl::Status SaveInternal(SerializationContext* context, IteratorStateWriter* writer) override {
        return SaveInput(context, writer, input_);
      }

      absl::Status RestoreInternal(IteratorContext* context, IteratorStateReader* reader) override {
        return RestoreInput(context, reader, input_);
      }

     private:
      std::unique_ptr<IteratorBase> input_;
    };

    const DatasetBase* const input_;
    const std::string cache_;
    Waits* const waits_;
  };

  std::string cache_;
};

class WaitStatsOp : public OpKernel {
 public:
  explicit WaitStatsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("cache", &cache_));
  }

  void Compute(OpKernelContext* context) override {
    const Waits& waits = WaitsOf(cache_);
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {2}, &output));
    output->flat<int64_t>()(0) = waits.batches;
    output->flat<int64_t>()(1) = waits.microseconds;
  }

 private:
  std::string cache_;
};

REGISTER_KERNEL_BUILDER(Name("DatacacheTimedDataset").Device(DEVICE_CPU), TimedDatasetOp);
REGISTER_KERNEL_BUILDER(Name("DatacacheWaitStats").Device(DEVICE_CPU), WaitStatsOp);

}  // namespace
}  // namespace data
}  // namespace tensorflow
