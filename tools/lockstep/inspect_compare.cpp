// SPDX-License-Identifier: Apache-2.0
#include "lockstep/inspect_compare.h"

#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "core/check.h"
#include "replica/locate.h"

namespace lockstep::inspect {
namespace {

namespace fs = std::filesystem;
using core::str;

std::string type_of(const Item& item) {
  return item.tensor.defined() ? str(c10::toString(item.tensor.scalar_type()), " ", item.tensor.sizes()) : item.text;
}

/// The first element whose bits differ, and how many do.
std::optional<std::string> difference_of(const at::Tensor& reference, const at::Tensor& other) {
  const auto plain = [](const at::Tensor& t) { return t.resolve_conj().resolve_neg().contiguous(); };
  const auto a = plain(reference).reshape({-1});
  const auto b = plain(other).reshape({-1});
  const auto width = a.element_size();
  const auto* here = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* there = static_cast<const std::byte*>(b.const_data_ptr());
  std::int64_t first = -1;
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    if (!std::equal(here + i * width, here + (i + 1) * width, there + i * width)) {
      first = first < 0 ? i : first;
      ++count;
    }
  }
  if (count == 0) {
    return std::nullopt;
  }
  const auto value = [&](const at::Tensor& t) { return replica::value_text(t.narrow(0, first, 1)); };
  return str(" at ", c10::IntArrayRef(replica::unravel(first, reference.sizes())), ": ", value(b), " instead of ",
             value(a), "; ", count, " of ", a.numel(), " elements differ");
}

std::optional<std::string> difference_of(const Item& reference, const Item& other) {
  const bool tensors = reference.tensor.defined() && other.tensor.defined();
  const bool alike = tensors && reference.tensor.sizes() == other.tensor.sizes() &&
                     reference.tensor.scalar_type() == other.tensor.scalar_type();
  if (alike) {
    const auto found = difference_of(reference.tensor, other.tensor);
    return found ? std::optional(reference.path + *found) : std::nullopt;
  }
  if (!reference.tensor.defined() && !other.tensor.defined() && reference.text == other.text) {
    return std::nullopt;
  }
  return str(reference.path, " is ", type_of(other), " instead of ", type_of(reference));
}

std::string bytes_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  core::check(in.good(), "inspect", [&] { return core::Problem{str("'", file, "' cannot be read")}; });
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

Comparison compare_bytes(const std::string& reference, const std::string& other) {
  const auto a = bytes_of(reference);
  const auto b = bytes_of(other);
  Comparison result;
  result.pieces = 1;
  if (a != b) {
    const auto shorter = std::min(a.size(), b.size());
    const auto place = std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin()).first;
    result.differences.push_back(
        str("byte ", place - a.begin(), " is the first that differs; ", b.size(), " bytes instead of ", a.size()));
  }
  return result;
}

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) {
      names.insert(fs::relative(entry.path(), folder).string());
    }
  }
  return names;
}

void check_exists(const std::string& path) {
  core::check(fs::exists(path), "inspect", [&] { return core::Problem{str("'", path, "' does not exist")}; });
}

}  // namespace

Comparison compare(const std::vector<Item>& reference, const std::vector<Item>& other) {
  std::map<std::string, const Item*> by_path;
  for (const auto& item : other) {
    by_path[item.path] = &item;
  }
  Comparison result;
  for (const auto& item : reference) {
    const auto found = by_path.find(item.path);
    if (found == by_path.end()) {
      result.differences.push_back(item.path + " is missing");
      continue;
    }
    ++result.pieces;
    if (auto difference = difference_of(item, *found->second)) {
      result.differences.push_back(std::move(*difference));
    }
    by_path.erase(found);
  }
  for (const auto& [path, item] : by_path) {
    result.differences.push_back(path + " is not in the first");
  }
  return result;
}

Comparison compare_files(const std::string& reference, const std::string& other) {
  if (reference.empty() || other.empty()) {
    return {{reference.empty() ? "the file is not in the first folder" : "the file is missing"}, 0};
  }
  if (is_archive(reference) && is_archive(other)) {
    return compare(items_of(reference), items_of(other));
  }
  return compare_bytes(reference, other);
}

std::vector<std::pair<std::string, std::string>> pairs_of(const std::string& reference, const std::string& other) {
  check_exists(reference);
  check_exists(other);
  std::vector<std::pair<std::string, std::string>> pairs;
  if (!fs::is_directory(other)) {
    core::check(!fs::is_directory(reference), "inspect", [&] {
      return core::Problem{str("the folder '", reference, "' is to be compared with a file"), "", "",
                           "give the file first"};
    });
    return {{reference, other}};
  }
  auto names = files_in(other);
  if (!fs::is_directory(reference)) {
    for (const auto& name : names) {
      pairs.emplace_back(reference, (fs::path(other) / name).string());
    }
    return pairs;
  }
  const auto present = [](const std::string& folder, const std::string& name) {
    const auto path = fs::path(folder) / name;
    return fs::exists(path) ? path.string() : std::string();
  };
  names.merge(files_in(reference));
  for (const auto& name : names) {
    pairs.emplace_back(present(reference, name), present(other, name));
  }
  return pairs;
}

}  // namespace lockstep::inspect
