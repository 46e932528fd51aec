// SPDX-License-Identifier: Apache-2.0
#include "lockstep/inspect_archive.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "core/check.h"

namespace lockstep::inspect {
namespace {

using core::str;

std::string joined(const std::string& path, const std::string& key) {
  // LibTorch repeats a list's name in the names of its members: param_groups, then param_groups/0.
  const auto last = path.substr(path.rfind('.') == std::string::npos ? 0 : path.rfind('.') + 1);
  if (!last.empty() && key.starts_with(last + "/")) {
    return path + key.substr(last.size());
  }
  return path.empty() ? key : path + "." + key;
}

std::string text_of(const c10::IValue& value) {
  if (value.isDouble()) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", value.toDouble());
    return text;
  }
  std::ostringstream out;
  out << value;
  return out.str();
}

class Walk {
 public:
  void visit(const std::string& path, const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) {
      items.push_back({path, value.toTensor().detach()});
    } else if (value.isObject()) {
      visit_object(path, *value.toObject());
    } else if (value.isGenericDict()) {
      for (const auto& entry : value.toGenericDict()) {
        visit(joined(path, entry.key().isString() ? entry.key().toStringRef() : text_of(entry.key())), entry.value());
      }
    } else if (value.isList()) {
      visit_all(path, value.toListRef());
    } else if (value.isTuple()) {
      visit_all(path, value.toTupleRef().elements());
    } else {
      items.push_back({path, {}, text_of(value)});
    }
  }

  std::vector<Item> items;

 private:
  void visit_object(const std::string& path, const c10::ivalue::Object& object) {
    for (std::size_t i = 0; i < object.type()->numAttributes(); ++i) {
      visit(joined(path, object.type()->getAttributeName(i)), object.getSlot(i));
    }
  }

  template <class Values>
  void visit_all(const std::string& path, const Values& values) {
    std::size_t i = 0;
    for (const auto& value : values) {
      visit(str(path, "/", i++), value);
    }
  }
};

/// `0/2` for a path that ends in `param_groups/0.params/2`; empty for others.
std::string place_in_groups(const std::string& path) {
  constexpr std::string_view groups = "param_groups/";
  constexpr std::string_view params = ".params/";
  const auto begin = path.find(groups);
  const auto middle = path.find(params);
  if (begin == std::string::npos || middle == std::string::npos || middle < begin || path.ends_with("/size")) {
    return {};
  }
  const auto group = begin + groups.size();
  return path.substr(group, middle - group) + "/" + path.substr(middle + params.size());
}

/// Puts places in the stead of addresses, which differ from run to run, and takes out the list that translates them.
void rename_states(std::vector<Item>& items) {
  std::map<std::string, std::string> places;
  std::erase_if(items, [&](const Item& item) {
    const auto place = item.tensor.defined() ? "" : place_in_groups(item.path);
    if (!place.empty()) {
      places[item.text] = place;
    }
    return !place.empty();
  });
  constexpr std::string_view state = "state.";
  for (auto& item : items) {
    const auto begin = item.path.find(state);
    const auto key = begin == std::string::npos ? begin : begin + state.size();
    const auto end = key == std::string::npos ? key : item.path.find('.', key);
    if (end != std::string::npos) {
      const auto place = places.find(item.path.substr(key, end - key));
      item.path = place == places.end() ? item.path : item.path.replace(key, end - key, place->second);
    }
  }
}

c10::IValue unpickled(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return torch::jit::pickle_load(bytes);
}

c10::IValue loaded(const std::string& file) {
  try {
    return torch::jit::load(file, c10::Device(c10::kCPU))._ivalue();
  } catch (const c10::Error&) {
    return unpickled(file);  // Python's torch.save
  }
}

}  // namespace

bool is_archive(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  char head[4] = {};
  in.read(head, sizeof head);
  return in && std::string_view(head, sizeof head) == std::string_view("PK\x03\x04", 4);
}

std::vector<Item> items_of(const std::string& file) {
  Walk walk;
  try {
    walk.visit("", loaded(file));
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    core::fail("inspect", {str("'", file, "' cannot be read"), text.substr(0, text.find('\n')),
                           "a whole file written by torch::save"});
  }
  rename_states(walk.items);
  std::stable_sort(walk.items.begin(), walk.items.end(), [](const Item& a, const Item& b) { return a.path < b.path; });
  return walk.items;
}

}  // namespace lockstep::inspect
