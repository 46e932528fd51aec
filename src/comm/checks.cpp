// SPDX-License-Identifier: Apache-2.0
#include "comm/checks.h"

#include <algorithm>
#include <array>

#include "core/check.h"

namespace lockstep::comm {
namespace {

using core::Problem;
using core::str;

template <class Make>
void check(bool ok, const Call& call, Make&& make) {
  core::check(ok, str("world.", name_of(call.operation)), [&] {
    auto problem = make();
    problem.what += call.label.name.empty() ? std::string() : str(" ('", call.label.name, "')");
    return problem;
  });
}

std::string shape_of(const at::Tensor& tensor) {
  return str(c10::toString(tensor.scalar_type()), tensor.sizes(), ", strides ", tensor.strides());
}

void check_memory(const at::Tensor& tensor, const char* which, const Call& call, const Place& place) {
  check(tensor.defined(), call, [&] { return Problem{str(which, " is an undefined tensor")}; });
  check(tensor.layout() == at::kStrided && !tensor.is_quantized(), call, [&] {
    return Problem{str(which, " has no plain memory"), str(tensor.toString()), "a strided tensor"};
  });
  check(!tensor.is_conj() && !tensor.is_neg(), call, [&] {
    return Problem{
        str(which, " is a lazily conjugated or negated view"), {}, {}, "pass tensor.resolve_conj().resolve_neg()"};
  });
  // Nothing moves in a world of one: a model may live on any device there.
  const bool alone = place.size == 1 && !tensor.is_meta();
  const bool here = alone || tensor.device() == place.device || (place.takes_cpu && tensor.is_cpu());
  check(here, call, [&] {
    return Problem{str(which, " is on another device"), tensor.device().str(), place.device.str()};
  });
}

bool share_memory(const at::Tensor& a, const at::Tensor& b) {
  const auto* first = static_cast<const char*>(a.const_data_ptr());
  const auto* second = static_cast<const char*>(b.const_data_ptr());
  return first < second + b.nbytes() && second < first + a.nbytes();
}

}  // namespace

void check_dense(const at::Tensor& tensor, const Call& call, const Place& place) {
  check_memory(tensor, "tensor", call, place);
  check(tensor.is_non_overlapping_and_dense(), call, [&] {
    return Problem{"tensor has gaps or overlaps in memory", shape_of(tensor), "a dense tensor",
                   "pass a contiguous copy and copy the result back"};
  });
}

void check_contiguous(const at::Tensor& tensor, const char* which, const Call& call, const Place& place) {
  check_memory(tensor, which, call, place);
  check(tensor.is_contiguous(), call, [&] {
    return Problem{str(which, " is not contiguous"), shape_of(tensor), "a contiguous tensor"};
  });
}

void check_reducible(at::ScalarType dtype, const Call& call) {
  constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,     at::kInt,          at::kLong,
                               at::kChar,  at::kByte,   at::kBool, at::kComplexFloat, at::kComplexDouble};
  check(std::find(kDtypes.begin(), kDtypes.end(), dtype) != kDtypes.end(), call, [&] {
    return Problem{"this dtype cannot be reduced", c10::toString(dtype),
                   "Float, Double, Half, BFloat16, Int, Long, Char, Byte, Bool, ComplexFloat or ComplexDouble"};
  });
  const bool ordered = call.op == ReduceOp::Min || call.op == ReduceOp::Max;
  check(!ordered || !at::isComplexType(dtype), call, [&] {
    return Problem{"complex numbers have no order", str(name_of(call.op), " of ", c10::toString(dtype))};
  });
  const bool divisible = at::isFloatingType(dtype) || at::isComplexType(dtype);
  check(call.op != ReduceOp::Average || divisible, call, [&] {
    return Problem{"the average of whole numbers is not a whole number", c10::toString(dtype), "a floating dtype",
                   "reduce with Sum and divide as you wish"};
  });
}

void check_root(const Call& call, const Place& place) {
  check(call.root >= 0 && call.root < place.size, call, [&] {
    return Problem{"no such root", str("rank ", call.root), str("0 to ", place.size - 1)};
  });
}

void check_parts(const at::Tensor& whole, const at::Tensor& part, const Call& call, const Place& place) {
  check(whole.scalar_type() == part.scalar_type(), call, [&] {
    return Problem{"input and output differ in dtype",
                   str(c10::toString(whole.scalar_type()), " and ", c10::toString(part.scalar_type())), "the same"};
  });
  check(whole.device() == part.device(), call, [&] {
    return Problem{"input and output are on different devices", str(whole.device(), " and ", part.device()), "one"};
  });
  check(whole.numel() == part.numel() * place.size, call, [&] {
    return Problem{"sizes do not fit", str(whole.numel(), " elements for ", place.size, " parts of ", part.numel()),
                   str(part.numel() * place.size, " elements")};
  });
  const auto* own =
      static_cast<const char*>(whole.const_data_ptr()) + static_cast<std::size_t>(place.rank) * part.nbytes();
  check(part.const_data_ptr() == own || !share_memory(whole, part), call, [&] {
    return Problem{
        "input and output overlap", {}, "separate tensors, or the smaller one this rank's part of the larger"};
  });
}

}  // namespace lockstep::comm
