// Definition of the SumEntries and ReplaceEntries operations.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::DimensionHandle;
using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

absl::Status SumEntriesShape(InferenceContext* c) {
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &values));
  TF_RETURN_IF_ERROR(c->Merge(values, c->input(1), &values));
  int64_t length;
  TF_RETURN_IF_ERROR(c->GetAttr("length", &length));
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->Multiply(c->Dim(values, 0), length, &size));
  c->set_output(0, c->Vector(size));
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status ReplaceEntriesShape(InferenceContext* c) {
  ShapeHandle rows, indices, values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &indices));
  DimensionHandle unused;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(rows, 0), c->Dim(indices, 0), &unused));
  if (c->RankKnown(c->input(2)) && c->Rank(c->input(2)) != 0) {
    TF_RETURN_IF_ERROR(c->Merge(indices, c->input(2), &values));
  }
  c->set_output(0, rows);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SumEntries")
    .Input("values: float")
    .Input("indices: int32")
    .Output("total: float")
    .Output("finite: bool")
    .Attr("length: int >= 0")
    .SetShapeFn(SumEntriesShape)
    .Doc(R"doc(
Adds up the entries of S vectors, each in C rows of K, row by row.

values: [S, C, K].
indices: [S, C, K], each in [0, length).
total: [S * length], the sum of values[s, c, k] at s * length + indices[s, c, k].
finite: scalar, whether all sums are.
)doc");

REGISTER_OP("ReplaceEntries")
    .Input("rows: float")
    .Input("indices: int32")
    .Input("values: float")
    .Output("replaced: float")
    .SetShapeFn(ReplaceEntriesShape)
    .Doc(R"doc(
Rows with other values at some places; in place where nothing else needs them.

rows: [R, n].
indices: [R, K], each in [0, n).
values: [R, K], or a scalar.
replaced: [R, n], values[r, k] at indices[r, k], and elsewhere what is in `rows`.
)doc");

}  // namespace tensorflow
