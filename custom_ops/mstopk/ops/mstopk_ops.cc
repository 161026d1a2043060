// Definitions of the Mstopk and MstopkErrorFeedback operations.

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::DimensionHandle;
using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

// The dimension that input `k_input` asks for, checked against the last dimension of `shape`.
absl::Status WinnersDim(InferenceContext* c, ShapeHandle shape, int k_input, DimensionHandle* k) {
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(k_input, k));
  const DimensionHandle last = c->Dim(shape, -1);
  if (c->ValueKnown(last) && c->ValueKnown(*k) && c->Value(last) < c->Value(*k)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input must have last dimension >= k = ", c->Value(*k), " but is ", c->Value(last)));
  }
  return absl::OkStatus();
}

absl::Status MstopkShape(InferenceContext* c) {
  ShapeHandle input;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &input));
  ShapeHandle output = c->UnknownShape();
  DimensionHandle k;
  if (c->RankKnown(input)) {
    TF_RETURN_IF_ERROR(WinnersDim(c, input, 1, &k));
    ShapeHandle rows;
    TF_RETURN_IF_ERROR(c->Subshape(input, 0, -1, &rows));
    TF_RETURN_IF_ERROR(c->Concatenate(rows, c->Vector(k), &output));
  } else {
    TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &k));
  }
  c->set_output(0, output);
  c->set_output(1, output);
  return absl::OkStatus();
}

absl::Status ErrorFeedbackShape(InferenceContext* c) {
  ShapeHandle grad;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &grad));
  TF_RETURN_IF_ERROR(c->Merge(grad, c->input(1), &grad));
  DimensionHandle k;
  TF_RETURN_IF_ERROR(WinnersDim(c, grad, 2, &k));
  c->set_output(0, c->Vector(k));
  c->set_output(1, c->Vector(k));
  c->set_output(2, grad);
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("Mstopk")
    .Input("input: T")
    .Input("k: Tk")
    .Output("values: T")
    .Output("indices: index_type")
    .Attr("num_samplings: int >= -1 = -1")
    .Attr("sorted: bool = false")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64} = DT_INT32")
    .Attr("index_type: {int32, int64} = DT_INT32")
    .SetShapeFn(MstopkShape)
    .Doc(R"doc(
The k elements of largest magnitude in each row of the last dimension.

Exactly k distinct indices per row, whatever the input: every element strictly above the k-th
magnitude, then ties from the lowest index on; NaN ranks above Inf above every finite number.
Deterministic, and the same on every device.

input: [..., N]
k: scalar, 0 <= k <= N.
values: [..., K], elements of `input` with their signs.
indices: [..., K], positions within the row, ascending (by falling magnitude if `sorted`).
num_samplings: -1 selects exactly; N >= 0 selects by the bracket that N bisections of the MSTopK
  paper's threshold search end with.
sorted: whether the winners are ordered by falling magnitude, ties by rising index.
)doc");

REGISTER_OP("MstopkErrorFeedback")
    .Input("grad: T")
    .Input("residual: float")
    .Input("k: Tk")
    .Output("values: float")
    .Output("indices: index_type")
    .Output("new_residual: float")
    .Output("all_finite: bool")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64} = DT_INT32")
    .Attr("index_type: {int32, int64} = DT_INT32")
    .SetShapeFn(ErrorFeedbackShape)
    .Doc(R"doc(
Error feedback fused with Mstopk: acc = residual + grad in float32; the k elements of largest |acc|
leave, the others stay behind for the next step.

grad: [N]
residual: [N]
k: scalar, 0 <= k <= N.
values: [K], the winners' acc.
indices: [K], their positions, ascending.
new_residual: [N], acc with zeros at `indices`; `residual` itself, unchanged, unless all_finite.
all_finite: scalar, whether grad has neither NaN nor Inf.
)doc");

}  // namespace tensorflow
