// Definition of the EncodeIndices and DecodeIndices operations.

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tensorflow {
namespace {

using shape_inference::DimensionHandle;
using shape_inference::InferenceContext;
using shape_inference::ShapeHandle;

absl::Status EncodeIndicesShape(InferenceContext* c) {
  ShapeHandle indices;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &indices));
  int64_t low, upper;
  TF_RETURN_IF_ERROR(c->GetAttr("low_bits", &low));
  TF_RETURN_IF_ERROR(c->GetAttr("upper_bits", &upper));
  DimensionHandle words;
  TF_RETURN_IF_ERROR(c->Multiply(c->Dim(indices, 1), low, &words));
  TF_RETURN_IF_ERROR(c->Add(words, upper, &words));
  TF_RETURN_IF_ERROR(c->Add(words, int64_t{31}, &words));
  TF_RETURN_IF_ERROR(c->Divide(words, int64_t{32}, /*evenly_divisible=*/false, &words));
  c->set_output(0, c->Matrix(c->Dim(indices, 0), words));
  return absl::OkStatus();
}

absl::Status DecodeIndicesShape(InferenceContext* c) {
  ShapeHandle words;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &words));
  int64_t k;
  TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
  c->set_output(0, c->Matrix(c->Dim(words, 0), k));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("EncodeIndices")
    .Input("indices: int32")
    .Output("words: int32")
    .Attr("low_bits: int >= 0")
    .Attr("upper_bits: int >= 0")
    .SetShapeFn(EncodeIndicesShape)
    .Doc(R"doc(
Rows of ascending indices by Elias-Fano coding.

indices: [R, K].
low_bits: l, at most 31.
upper_bits: U, of the field behind the low bits.
words: [R, ceil((K l + U) / 32)].
)doc");

REGISTER_OP("DecodeIndices")
    .Input("words: int32")
    .Output("indices: int32")
    .Attr("k: int >= 0")
    .Attr("low_bits: int >= 0")
    .Attr("upper_bits: int >= 0")
    .SetShapeFn(DecodeIndicesShape)
    .Doc(R"doc(
What EncodeIndices encoded.

words: [R, ceil((k l + U) / 32)].
k: indices in a row.
low_bits: l, at most 31.
upper_bits: U.
indices: [R, k].
)doc");

}  // namespace tensorflow
