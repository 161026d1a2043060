// Definition of the SegmentedNorms operation.

#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

absl::Status SegmentedNormsShape(InferenceContext* c) {
  std::vector<ShapeHandle> weights, directions;
  TF_RETURN_IF_ERROR(c->input("weights", &weights));
  TF_RETURN_IF_ERROR(c->input("directions", &directions));
  ShapeHandle unused;
  for (size_t i = 0; i < weights.size(); ++i) {
    TF_RETURN_IF_ERROR(c->Merge(weights[i], directions[i], &unused));
  }
  const ShapeHandle layers = c->Vector(weights.size());
  TF_RETURN_IF_ERROR(c->Merge(layers, c->input(c->num_inputs() - 1), &unused));
  c->set_output(0, c->Matrix(weights.size(), 2));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SegmentedNorms")
    .Input("weights: L * T")
    .Input("directions: L * T")
    .Input("decays: T")
    .Output("sums: double")
    .Attr("L: int >= 1")
    .Attr("T: {float, double}")
    .SetShapeFn(SegmentedNormsShape)
    .Doc(R"doc(
Sums of squares of L pairs of tensors in one read, each summed in double in a fixed order.

weights: w, L tensors.
directions: x, L tensors of the shapes of `weights`.
decays: c, [L].
sums: [L, 2], sum(w^2) and sum((x + c w)^2).
)doc");

}  // namespace tensorflow
