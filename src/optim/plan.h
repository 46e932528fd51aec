// SPDX-License-Identifier: Apache-2.0
// From the parameters that take a step to the spans and clocks of each device.
#pragma once

#include <vector>

#include "optim/engine.h"

namespace lockstep::optim {

struct DeviceWork {
  c10::Device device;
  std::vector<Tick> ticks;
  std::vector<Pass> passes;
};

/// Kind of a dtype, `none` where no pass serves it.
Kind kind_of(at::ScalarType dtype);

/// Throws InputError unless each defined input is one fp32 element.
void check_inputs(const StepInputs& inputs);

/// True if the step's flag can be read without waiting and says that the step is left out.
bool left_out_on_host(const StepInputs& inputs);

/// Spans of all items, by device. Tensors that no span can walk are staged.
std::vector<DeviceWork> plan_passes(const std::vector<Item>& items, const std::vector<Recipe>& recipes,
                                    Staging& staging);

/// Addresses of the inputs on `device`. `keep` holds copies made for it.
Signals signals_on(c10::Device device, const StepInputs& inputs, std::vector<at::Tensor>& keep);

void run(const DeviceWork& work);

}  // namespace lockstep::optim
