// SPDX-License-Identifier: Apache-2.0
// Saved state of an Amp: scales and masters as one list of named tensors.
#include <ATen/ATen.h>

#include "amp/amp_impl.h"
#include "core/check.h"

namespace lockstep::amp {
namespace {

using core::check;
using core::Problem;
using core::str;

constexpr const char* kLoad = "amp.load_state_dict";
using State = std::map<std::string, at::Tensor>;

std::string scaler_prefix(std::size_t index) {
  return str("loss_scaler", index, ".");
}

std::map<std::string, double> scaler_state(const State& state, std::size_t index) {
  std::map<std::string, double> numbers;
  const auto prefix = scaler_prefix(index);
  for (const auto& [name, tensor] : state) {
    if (name.compare(0, prefix.size(), prefix) == 0) {
      numbers[name.substr(prefix.size())] = tensor.item<double>();
    }
  }
  return numbers;
}

void check_fits(const State& given, const State& own) {
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    check(found != given.end() && found->second.defined(), kLoad, [&, &name = name] {
      return Problem{str("the state lacks '", name, "'"), "", "",
                     "it was saved by another "
                     "opt level, model or number of losses"};
    });
    check(found->second.sizes() == tensor.sizes() && found->second.scalar_type() == tensor.scalar_type(), kLoad,
          [&, &name = name, &tensor = tensor] {
            return Problem{str("'", name, "' does not fit"), str(found->second.scalar_type(), found->second.sizes()),
                           str(tensor.scalar_type(), tensor.sizes())};
          });
  }
  for (const auto& [name, tensor] : given) {
    check(own.count(name) != 0, kLoad,
          [&, &name = name] { return Problem{str("the state has an unknown '", name, "'")}; });
  }
}

}  // namespace

State Amp::scale_tensors() const {
  State state;
  for (std::size_t i = 0; i < impl_->scalers.size(); ++i) {
    for (const auto& [key, tensor] : impl_->scalers[i]->state().tensors()) {
      state[scaler_prefix(i) + key] = tensor;
    }
  }
  return state;
}

State Amp::state_dict() const {
  State state;
  for (std::size_t i = 0; i < impl_->scalers.size(); ++i) {
    for (const auto& [key, value] : impl_->scalers[i]->state_dict()) {
      state[scaler_prefix(i) + key] = at::scalar_tensor(value, at::kDouble);
    }
  }
  for (const auto& item : impl_->named_masters()) {
    state["master." + item.name] = item.master.detach();
  }
  return state;
}

void Amp::load_state_dict(const State& state) {
  check_fits(state, state_dict());
  for (std::size_t i = 0; i < impl_->scalers.size(); ++i) {
    check_state(scaler_state(state, i), impl_->scalers[i]->options());
  }
  for (std::size_t i = 0; i < impl_->scalers.size(); ++i) {
    impl_->scalers[i]->load_state_dict(scaler_state(state, i));
  }
  const at::NoGradGuard no_grad;
  for (const auto& item : impl_->named_masters()) {
    item.master.detach().copy_(state.at("master." + item.name));
  }
}

}  // namespace lockstep::amp
