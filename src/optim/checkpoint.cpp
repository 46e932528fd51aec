// SPDX-License-Identifier: Apache-2.0
#include "optim/checkpoint.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::optim {
namespace {

constexpr auto kLoad = "optim.load";
constexpr auto kClass = "lockstep_class";
constexpr auto kMasters = "lockstep_masters";

void check_state(const at::Tensor& parameter, const at::Tensor* state) {
  const bool given = state != nullptr && state->defined();
  core::check(!given || state->sizes() == parameter.sizes(), kLoad, [&] {
    return core::Problem{"a state in the checkpoint has another shape than its parameter", core::str(state->sizes()),
                         core::str(parameter.sizes()), "load the checkpoint of this model"};
  });
}

/// The option names of the first group; empty if there is none.
std::vector<std::string> option_names(torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive groups, first, options;
  if (archive.try_read("param_groups", groups) && groups.try_read("param_groups/0", first) &&
      first.try_read("options", options)) {
    return options.keys();
  }
  return {};
}

}  // namespace

void save_extras(torch::serialize::OutputArchive& archive, const Engine& engine) {
  archive.write(kClass, c10::IValue(engine.schema().name()));
  const auto masters = engine.masters();
  torch::serialize::OutputArchive own(archive.compilation_unit());
  for (std::size_t i = 0; i < masters.size(); ++i) {
    if (masters[i].defined()) {
      own.write(std::to_string(i), masters[i], /*is_buffer=*/true);
    }
  }
  archive.write(kMasters, own);
}

std::vector<at::Tensor> load_masters(torch::serialize::InputArchive& archive, std::size_t count) {
  torch::serialize::InputArchive own;
  if (!archive.try_read(kMasters, own)) {
    return {};
  }
  std::vector<at::Tensor> masters(count);
  for (std::size_t i = 0; i < count; ++i) {
    own.try_read(std::to_string(i), masters[i], /*is_buffer=*/true);
  }
  return masters;
}

void check_class(torch::serialize::InputArchive& archive, const Schema& schema) {
  c10::IValue name;
  const bool named = archive.try_read(kClass, name) && name.isString();
  core::check(!named || name.toStringRef() == schema.name(), kLoad, [&] {
    return core::Problem{"the checkpoint is another optimizer's", name.toStringRef(), schema.name()};
  });
  const auto options = option_names(archive);
  const bool ours = std::find(options.begin(), options.end(), schema.telling_option()) != options.end();
  core::check(options.empty() || ours, kLoad, [&] {
    return core::Problem{"the checkpoint is another optimizer's", "options " + core::str(options),
                         core::str("options with ", schema.telling_option())};
  });
}

void check_loaded(torch::optim::Optimizer& loaded, const Schema& schema) {
  for (const auto& group : loaded.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto state = loaded.state().find(parameter.unsafeGetTensorImpl());
      if (state != loaded.state().end()) {
        for (const auto* tensor : schema.tensors(*state->second)) {
          check_state(parameter, tensor);
        }
      }
    }
  }
}

}  // namespace lockstep::optim
