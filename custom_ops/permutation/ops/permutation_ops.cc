// Definition of the PermutedIndex operation.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

absl::Status PermutedIndexShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &shape));
  for (int i = 1; i < c->num_inputs(); ++i) {
    ShapeHandle input;
    TF_RETURN_IF_ERROR(c->WithRankAtMost(c->input(i), 1, &input));
    if (c->RankKnown(input) && c->Rank(input) == 1) TF_RETURN_IF_ERROR(c->Merge(shape, input, &shape));
  }
  c->set_output(0, shape);
  return absl::OkStatus();
}

}  // namespace

// Not stateful: tf.data saves iterators whose functions contain it.
REGISTER_OP("PermutedIndex")
    .Input("index: int64")
    .Input("size: int64")
    .Input("key: W * int64")
    .Output("permuted: int64")
    .Attr("W: int >= 1")
    .SetShapeFn(PermutedIndexShape)
    .Doc(R"doc(
Where elements go under pseudo-random permutations.

index: [n], each in [0, size).
size: elements of the permutation, for all or for each: [] or [n]; 1 to 2^62.
key: words that choose the permutation, [] or [n] each.
permuted: [n].
)doc");

}  // namespace tensorflow
