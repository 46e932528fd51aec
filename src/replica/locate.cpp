// SPDX-License-Identifier: Apache-2.0
#include "replica/locate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/check.h"
#include "core/digest.h"

namespace lockstep::replica {
namespace {

constexpr std::int64_t kParts = 256;
constexpr std::int64_t kExchanged = 4096;  // bytes
constexpr std::int64_t kWidest = 16;       // bytes of an element; parts start at multiples of it

/// Bytes [begin, end) of a tensor.
struct Range {
  std::int64_t begin;
  std::int64_t end;
};

/// Column of the first byte, or number, in which the rows differ; the number of columns if they are equal.
std::int64_t first_difference(const at::Tensor& rows) {
  const auto width = static_cast<std::size_t>(rows.size(1) * rows.element_size());
  const auto* data = static_cast<const std::byte*>(rows.const_data_ptr());
  std::size_t first = width;
  for (std::int64_t row = 1; row < rows.size(0); ++row) {
    const auto* other = data + static_cast<std::size_t>(row) * width;
    first = std::min(first, static_cast<std::size_t>(std::mismatch(data, data + width, other).first - data));
  }
  return static_cast<std::int64_t>(first) / rows.element_size();
}

/// The first of `range`'s parts that differs, or nothing.
std::optional<Range> narrower(const World& world, const at::Tensor& bytes, Range range) {
  const std::int64_t part = ((range.end - range.begin + kParts - 1) / kParts + kWidest - 1) / kWidest * kWidest;
  std::vector<at::Tensor> parts;
  for (auto begin = range.begin; begin < range.end; begin += part) {
    parts.push_back(bytes.narrow(0, begin, std::min(part, range.end - begin)));
  }
  const auto place = first_difference(gathered(world, core::digests_of(parts), "digests of parts"));
  if (place == static_cast<std::int64_t>(parts.size())) {
    return std::nullopt;
  }
  const auto begin = range.begin + place * part;
  return Range{begin, std::min(begin + part, range.end)};
}

std::string bits_of(const at::Tensor& value) {
  const auto* bytes = static_cast<const unsigned char*>(value.const_data_ptr());
  std::string text = "0x";
  for (auto i = value.element_size(); i-- > 0;) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

std::string decimal_of(const at::Tensor& value) {
  if (value.is_complex()) {
    const auto number = value.item<c10::complex<double>>();
    return core::str(number.real(), number.imag() < 0 ? "" : "+", number.imag(), "i");
  }
  if (!value.is_floating_point()) {
    return std::to_string(value.item<std::int64_t>());
  }
  const int digits = value.element_size() == 8 ? 17 : value.element_size() == 4 ? 9 : 5;
  char text[32];
  std::snprintf(text, sizeof text, "%.*g", digits, value.item<double>());
  return text;
}

}  // namespace

at::Tensor gathered(const World& world, const at::Tensor& mine, const std::string& name) {
  const auto input = mine.to(world.device());
  const auto output = at::empty({world.size() * input.numel()}, input.options());
  world.all_gather(output, input, {.name = name}).wait();
  return output.cpu().view({world.size(), input.numel()});
}

std::vector<std::int64_t> unravel(std::int64_t flat, at::IntArrayRef sizes) {
  std::vector<std::int64_t> index(sizes.size());
  for (auto dim = sizes.size(); dim-- > 0;) {
    index[dim] = flat % sizes[dim];
    flat /= sizes[dim];
  }
  return index;
}

std::string value_text(const at::Tensor& value) {
  return core::str(decimal_of(value), " (", bits_of(value), ")");
}

std::optional<Element> first_differing_element(const World& world, const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const auto bytes = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape({-1}).view(at::ScalarType::Byte);
  std::optional<Range> range = Range{0, bytes.numel()};
  while (range && range->end - range->begin > kExchanged) {
    range = narrower(world, bytes, *range);
  }
  if (!range || range->begin == range->end) {
    return std::nullopt;
  }
  const auto rows = gathered(world, bytes.narrow(0, range->begin, range->end - range->begin), "differing part");
  const auto place = first_difference(rows);
  if (place == rows.size(1)) {
    return std::nullopt;
  }
  const auto width = tensor.element_size();
  const auto flat = (range->begin + place) / width;
  Element element{unravel(flat, tensor.sizes()), {}};
  for (std::int64_t rank = 0; rank < world.size(); ++rank) {
    const auto value = rows[rank].narrow(0, flat * width - range->begin, width).clone();
    element.values.push_back(value_text(value.view(tensor.scalar_type())));
  }
  return element;
}

}  // namespace lockstep::replica
