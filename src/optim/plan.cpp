// SPDX-License-Identifier: Apache-2.0
#include "optim/plan.h"

#include <algorithm>

#include "core/check.h"
#include "core/moved.h"
#include "core/runs.h"

namespace lockstep::optim {
namespace {

constexpr auto kPlan = "optim.step";

// Which lane of a piece holds what.
constexpr std::size_t kWeight = 0;
constexpr std::size_t kCopy = 1;
constexpr std::size_t kGrad = 2;
constexpr std::size_t kState = 3;
static_assert(kState + kMaxStates == core::kLanes);

constexpr std::uint8_t width_of(Kind kind) {
  constexpr std::array<std::uint8_t, 5> widths{0, 8, 4, 2, 2};  // in the order of Kind
  return widths[static_cast<std::size_t>(kind)];
}

/// Pieces of one device that one loop serves. A piece's tag is the place of its clock in `clocks`.
struct Bin {
  c10::Device device;
  Pass pass;
  std::vector<core::Piece> pieces;
  std::vector<const Clock*> clocks;
};

/// Pieces with one clock may become one span, except where a tensor's own norm counts.
std::uint64_t tag_in(Bin& bin, const Clock* clock) {
  auto found = std::find(bin.clocks.begin(), bin.clocks.end(), clock);
  if (found == bin.clocks.end() || bin.pass.update == Update::lamb) {
    found = bin.clocks.insert(bin.clocks.end(), clock);
  }
  return static_cast<std::uint64_t>(found - bin.clocks.begin());
}

std::uintptr_t address(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
}

Bin& bin_of(const Item& item, Update update, std::vector<Bin>& bins) {
  const auto device = item.weight->device();
  const auto weight = kind_of(item.weight->scalar_type());
  const auto copy = item.copy != nullptr ? kind_of(item.copy->scalar_type()) : Kind::none;
  const auto grad = kind_of(item.gradient->scalar_type());
  const auto found = std::find_if(bins.begin(), bins.end(), [&](const Bin& bin) {
    const auto& p = bin.pass;
    return bin.device == device && p.update == update && p.weight == weight && p.copy == copy && p.grad == grad;
  });
  if (found != bins.end()) {
    return *found;
  }
  return bins.emplace_back(Bin{device, {update, weight, copy, grad, {}}, {}, {}});
}

core::Piece piece_of(const Item& item, int states, std::uint64_t tag, Staging& staging) {
  core::Piece piece{.count = item.weight->numel(), .tag = tag};
  const auto& weight = staging.write(*item.weight, *item.weight);
  piece.at[kWeight] = address(weight);
  if (item.copy != nullptr) {
    piece.at[kCopy] = address(staging.write(*item.copy, weight));
  }
  piece.at[kGrad] = address(staging.read(*item.gradient, weight));
  for (std::size_t i = 0; i < static_cast<std::size_t>(states); ++i) {
    piece.at[kState + i] = address(*item.states[i]);
  }
  return piece;
}

core::LaneWidths widths_of(const Pass& pass) {
  core::LaneWidths widths{width_of(pass.weight), width_of(pass.copy), width_of(pass.grad)};
  const auto state = width_of(pass.weight == Kind::f64 ? Kind::f64 : Kind::f32);
  std::fill_n(widths.begin() + kState, state_count(pass.update), state);
  return widths;
}

Span span_of(const core::Piece& run, const Clock* clock) {
  const auto pointer = [&](std::size_t lane) { return reinterpret_cast<void*>(run.at[lane]); };
  Span span{.weight = pointer(kWeight), .copy = pointer(kCopy), .grad = pointer(kGrad)};
  for (std::size_t i = 0; i < kMaxStates; ++i) {
    span.state[i] = pointer(kState + i);
  }
  span.count = run.count;
  span.clock = clock;
  return span;
}

DeviceWork& work_of(c10::Device device, std::vector<DeviceWork>& all) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& work) { return work.device == device; });
  return found != all.end() ? *found : all.emplace_back(DeviceWork{device, {}, {}});
}

void check_input(const at::Tensor& tensor, const char* name) {
  core::check(!tensor.defined() || (tensor.scalar_type() == at::kFloat && tensor.numel() == 1), kPlan, [&] {
    return core::Problem{name, core::str(tensor.scalar_type(), " ", tensor.sizes()), "one fp32 element"};
  });
}

const float* value_on(c10::Device device, const at::Tensor& input, std::vector<at::Tensor>& keep) {
  if (!input.defined()) {
    return nullptr;
  }
  return keep.emplace_back(core::moved(input, device)).const_data_ptr<float>();
}

}  // namespace

Kind kind_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return Kind::f64;
    case at::kFloat:
      return Kind::f32;
    case at::kHalf:
      return Kind::f16;
    case at::kBFloat16:
      return Kind::bf16;
    default:
      return Kind::none;
  }
}

void check_inputs(const StepInputs& inputs) {
  check_input(inputs.grad_scale, "grad_scale does not fit");
  check_input(inputs.found_inf, "found_inf does not fit");
  check_input(inputs.clip_factor, "clip_factor does not fit");
}

bool left_out_on_host(const StepInputs& inputs) {
  const auto& flag = inputs.found_inf;
  return flag.defined() && flag.is_cpu() && *flag.const_data_ptr<float>() != 0;
}

std::vector<DeviceWork> plan_passes(const std::vector<Item>& items, const std::vector<Recipe>& recipes,
                                    Staging& staging) {
  std::vector<Bin> bins;
  for (const auto& item : items) {
    const auto update = recipes[item.group].update;
    auto& bin = bin_of(item, update, bins);
    const auto tag = tag_in(bin, item.slot->clock->clock());
    bin.pieces.push_back(piece_of(item, state_count(update), tag, staging));
  }
  std::vector<DeviceWork> all;
  for (auto& bin : bins) {
    for (const auto& run : core::join(std::move(bin.pieces), widths_of(bin.pass), kPlan)) {
      bin.pass.spans.push_back(span_of(run, bin.clocks[run.tag]));
    }
    work_of(bin.device, all).passes.push_back(std::move(bin.pass));
  }
  return all;
}

Signals signals_on(c10::Device device, const StepInputs& inputs, std::vector<at::Tensor>& keep) {
  return {.grad_scale = value_on(device, inputs.grad_scale, keep),
          .found_inf = value_on(device, inputs.found_inf, keep),
          .clip_factor = value_on(device, inputs.clip_factor, keep)};
}

void run(const DeviceWork& work) {
  if (work.device.is_cpu()) {
    return run_on_cpu(work.ticks, work.passes);
  }
  run_on_cuda(work.device.index(), work.ticks, work.passes);
}

}  // namespace lockstep::optim
