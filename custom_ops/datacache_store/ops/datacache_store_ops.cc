// Definitions of the operations of the sample cache. None that a pipeline uses is stateful: tf.data
// would refuse to save an iterator with it. As with ReadFile, what they read is taken not to change.

#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

absl::Status GatherShape(InferenceContext* c) {
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
  c->set_output(0, ids);
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
  for (size_t i = 0; i < shapes.size(); ++i) {
    ShapeHandle sample, batch;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &sample));
    TF_RETURN_IF_ERROR(c->Concatenate(ids, sample, &batch));
    c->set_output(i + 1, batch);
  }
  return absl::OkStatus();
}

absl::Status PutShape(InferenceContext* c) {
  ShapeHandle ids;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ids));
  for (int i = 0; i + 1 < c->num_inputs(); ++i) c->set_output(i, c->input(i + 1));
  return absl::OkStatus();
}

absl::Status CompleteShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(1 + i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("DatacacheGather")
    .Input("ids: int64")
    .Output("found: bool")
    .Output("values: T")
    .Attr("path: string")
    .Attr("T: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .SetShapeFn(GatherShape)
    .Doc(R"doc(
Copies B samples out of a store into one tensor per component; anything where one is absent.

ids: [B].
found: [B].
values: [B, shapes[i]...] each.
path: the store.
)doc");

REGISTER_OP("DatacacheExamine")
    .Input("ids: int64")
    .Attr("path: string")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc("Maps and checks samples of a store, as DatacacheGather does when a process first reads them.");

REGISTER_OP("DatacachePut")
    .Input("ids: int64")
    .Input("values: T")
    .Output("same_values: T")
    .Attr("path: string")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(PutShape)
    .Doc(R"doc(
Stores B samples that are absent, as far as there is room, and hands them through.

ids: [B].
values: [B, ...] each.
path: the store.
)doc");

REGISTER_OP("DatacacheComplete")
    .Input("found: bool")
    .Input("values: T")
    .Input("fresh: T")
    .Output("completed: T")
    .Attr("T: list(type) >= 1")
    .SetShapeFn(CompleteShape)
    .Doc(R"doc(
Puts rows into a batch where samples were absent, in place if nobody else has it.

found: [B].
values: [B, ...] each, as DatacacheGather gives them.
fresh: [absent, ...] each, the absent ones in order.
)doc");

REGISTER_OP("DatacacheRelease")
    .Input("ids: int64")
    .Attr("path: string")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc("Makes samples of a store absent.");

REGISTER_OP("DatacacheFetch")
    .Input("id: int64")
    .Output("found: bool")
    .Output("data: string")
    .Attr("path: string")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Copies a sample of any length out of a store.");

REGISTER_OP("DatacacheKeep")
    .Input("id: int64")
    .Input("data: string")
    .Output("same_data: string")
    .Attr("path: string")
    .Attr("decoded_path: string")
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc("Stores a sample of any length if there is room, and none for it in the store of decoded ones.");

// Without the usual attributes output_types and output_shapes: with them tf.data would put a prefetch behind it, whose
// thread would wait instead of the consumer.
REGISTER_OP("DatacacheTimedDataset")
    .Input("input_dataset: variant")
    .Output("handle: variant")
    .Attr("cache: string")
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc("The same elements; adds to a cache's waits how long they took to come.");

REGISTER_OP("DatacacheWaitStats")
    .Output("numbers: int64")
    .Attr("cache: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc("Batches that consumers of a cache waited for in this process, and microseconds.");

REGISTER_OP("DatacacheRead")
    .Input("original: string")
    .Input("copy: string")
    .Input("stamp: int64")
    .Input("offset: int64")
    .Input("length: int64")
    .Output("data: string")
    .Attr("record: bool")
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc(R"doc(
Reads a record of a file, or all of it, through a local copy, which is made when it is absent, outdated or damaged.

original: any URL that TensorFlow reads.
copy: path of the copy; empty: none is made.
stamp: identity of the original's content.
offset: first byte.
length: number of bytes.
record: the part is one TFRecord with its framing, whose checksums are checked; `data` is what it holds.
  Otherwise it is the whole file.
)doc");

REGISTER_OP("DatacacheRecordIndex")
    .Input("original: string")
    .Input("copy: string")
    .Input("stamp: int64")
    .Output("offsets: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Where the records of a TFRecord file begin, and where the last one ends; makes a local copy.");

REGISTER_OP("DatacacheCheckCopy")
    .Input("copy: string")
    .Output("good: bool")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc("Whether the bytes of a local copy are those that were written.");

REGISTER_OP("DatacacheCreate")
    .Input("samples: int64")
    .Input("payload_bytes: int64")
    .Attr("path: string")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc("Makes an empty store.");

REGISTER_OP("DatacacheKeepOpen")
    .Attr("paths: list(string)")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc("Lets go of all stores that this process has open but these: of deleted ones the memory is free then.");

REGISTER_OP("DatacacheSetCapacity")
    .Input("capacity: int64")
    .Attr("path: string")
    .SetIsStateful()
    .SetShapeFn(shape_inference::NoOutputs)
    .Doc("Sets how many samples a store may hold.");

REGISTER_OP("DatacacheStats")
    .Output("numbers: int64")
    .Attr("path: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(11));
      return absl::OkStatus();
    })
    .Doc("The fields of datacache::Stats in order, and microseconds in Get().");

REGISTER_OP("DatacacheReadStats")
    .Output("numbers: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(9));
      return absl::OkStatus();
    })
    .Doc("The fields of ReadStats in order, of this process.");

REGISTER_OP("DatacacheVerify")
    .Output("damaged: int64")
    .Attr("path: string")
    .SetIsStateful()
    .SetShapeFn(shape_inference::ScalarShape)
    .Doc("Reads a whole store; how many samples are damaged.");

}  // namespace tensorflow
