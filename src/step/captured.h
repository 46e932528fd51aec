// SPDX-License-Identifier: Apache-2.0
// The graphs of a captured step: for each shape of the inputs, one for each place in the window.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "step/recorder.h"

namespace lockstep::step {

/// First micro-batch of a window (gradients begin), inner ones (gradients are added to), last one (the step as well).
enum class Place : std::uint8_t { First, Inner, Last };
constexpr std::size_t kPlaces = 3;

/// What one micro-batch leaves on the device. `found_inf` and `norm` may be undefined.
struct Outputs {
  at::Tensor loss;
  at::Tensor found_inf;
  at::Tensor norm;
};

class Captured {
 public:
  using Inputs = std::vector<at::Tensor>;
  /// One micro-batch, forward to the end of its backward, or to the end of the step.
  using Body = std::function<Outputs(const Inputs&, Place)>;

  Captured(std::unique_ptr<Recorder> recorder, std::int64_t accumulate, std::int64_t max_shapes)
      : recorder_(std::move(recorder)), accumulate_(accumulate), max_shapes_(max_shapes) {}

  Recorder& recorder() { return *recorder_; }

  bool has(const Inputs& inputs) const { return find(inputs) != nullptr; }
  bool full() const { return static_cast<std::int64_t>(shapes_.size()) >= max_shapes_; }
  std::size_t shapes() const { return shapes_.size(); }

  /// Records all places of a window for inputs of these shapes. Between windows. Nothing runs. Throws what spoilt it.
  void record(const Inputs& inputs, const Body& body, const std::vector<at::Tensor>& parameters);

  /// Replays one micro-batch with new inputs of a recorded shape.
  Outputs replay(const Inputs& inputs, Place place);

  /// Gives parameters the gradients that replays of `inputs`' shape have accumulated, for an eager end of the window.
  void show_gradients(const Inputs& inputs, const std::vector<at::Tensor>& parameters) const;

 private:
  struct Step {
    std::unique_ptr<Recording> recording;
    at::Tensor results;  // of loss, found_inf, norm those that there are; fp32
    Outputs kinds;       // which of them there are, and the loss's dtype
  };
  struct Shape {
    Inputs inputs;
    std::array<Step, kPlaces> steps;
    std::vector<at::Tensor> gradients;  // of the parameters, inside a window
  };

  const Shape* find(const Inputs& inputs) const;
  void record_place(Shape& shape, Place place, const Body& body);

  std::unique_ptr<Recorder> recorder_;
  std::int64_t accumulate_;
  std::int64_t max_shapes_;
  std::vector<std::unique_ptr<Shape>> shapes_;
};

}  // namespace lockstep::step
