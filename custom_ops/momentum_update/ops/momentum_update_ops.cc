// Definition of the MomentumUpdate operation.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

absl::Status MomentumUpdateShape(InferenceContext* c) {
  ShapeHandle shape = c->input(2);
  for (const int variable : {0, 1}) {
    const auto* known = c->input_handle_shapes_and_types(variable);
    if (known != nullptr && !known->empty()) {
      TF_RETURN_IF_ERROR(c->Merge(shape, (*known)[0].shape, &shape));
    }
  }
  ShapeHandle unused;
  for (const int factor : {3, 4, 5, 6}) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(factor), 0, &unused));
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("MomentumUpdate")
    .Input("weights: resource")
    .Input("velocity: resource")
    .Input("gradient: T")
    .Input("rate: T")
    .Input("scale: T")
    .Input("momentum: T")
    .Input("decay: T")
    .Attr("nesterov: bool")
    .Attr("T: {float, double}")
    .SetIsStateful()
    .SetShapeFn(MomentumUpdateShape)
    .Doc(R"doc(
One step of momentum on two variables, in place unless somebody else holds their values.

growth = rate (gradient + decay weights); velocity = momentum velocity + growth;
weights -= scale (nesterov ? momentum velocity + growth : velocity).

weights: handle of a variable of T.
velocity: handle of another of the same shape.
gradient: of that shape.
rate: scalar.
scale: scalar.
momentum: scalar.
decay: scalar.
)doc");

}  // namespace tensorflow
