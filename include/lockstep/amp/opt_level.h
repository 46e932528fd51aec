// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/nested.h"
#include "lockstep/export.h"

namespace torch::nn {
class Module;
}

namespace lockstep::amp {

/// O0: fp32. O1: autocast. O2: low precision weights, BatchNorm in fp32, fp32 masters. O3: all low precision.
enum class OptLevel : std::uint8_t { O0, O1, O2, O3 };

/// "O0" to "O3". Throws InputError for any other text.
LOCKSTEP_API OptLevel parse_opt_level(std::string_view text);
LOCKSTEP_API std::string to_string(OptLevel level);

/// A static factor, or a dynamic scale that starts at 2^16 (or at `max_loss_scale`, if that is less).
class LOCKSTEP_API LossScale {
 public:
  /// A static scale. Throws InputError unless it is positive and finite.
  LossScale(double value);
  /// "dynamic", or a number. Throws InputError for any other text.
  LossScale(std::string_view text);
  LossScale(const char* text) : LossScale(std::string_view(text)) {}

  bool dynamic() const { return !value_; }
  /// The static scale.
  double value() const { return value_.value(); }
  bool operator==(const LossScale&) const = default;

 private:
  std::optional<double> value_;
};

/// What an opt level stands for, by apex's names.
///
/// | property              | O0    | O1      | O2      | O3    |
/// |-----------------------|-------|---------|---------|-------|
/// | cast_model_type       | fp32  | none    | low     | low   |
/// | patch_torch_functions | false | true    | false   | false |
/// | keep_batchnorm_fp32   | none  | none    | true    | false |
/// | master_weights        | false | none    | true    | false |
/// | loss_scale            | 1     | dynamic | dynamic | 1     |
struct OptLevelProperties {
  /// Dtype of the model's floating parameters and buffers and of what forward is given.
  std::optional<at::ScalarType> cast_model_type;
  /// Forward runs under autocast.
  bool patch_torch_functions = false;
  /// BatchNorm, and other modules with running statistics, stay in fp32.
  std::optional<bool> keep_batchnorm_fp32;
  /// The optimizer works on fp32 masters, which keep what the low precision parameters cannot.
  std::optional<bool> master_weights;
  LossScale loss_scale = 1.0;
};

/// The table above, with `low` for the low precision.
LOCKSTEP_API OptLevelProperties properties_of(OptLevel level, at::ScalarType low);

/// What `initialize` may be told beyond the level. A field that is not set leaves the level's own value.
struct AmpOptions {
  /// false: everything passes through.
  bool enabled = true;
  /// kHalf or kBFloat16; default: fp16 for a model on CUDA, bf16 on the CPU.
  std::optional<at::ScalarType> low_precision = std::nullopt;

  std::optional<at::ScalarType> cast_model_type = std::nullopt;
  std::optional<bool> patch_torch_functions = std::nullopt;
  std::optional<bool> keep_batchnorm_fp32 = std::nullopt;
  std::optional<bool> master_weights = std::nullopt;
  std::optional<LossScale> loss_scale = std::nullopt;

  /// Dtype of the floating tensors that `Amp::forward` returns; default: fp16 and bf16 ones become fp32.
  std::optional<at::ScalarType> cast_model_outputs = std::nullopt;
  /// Number of loss scales (see `Amp::scale`).
  int num_losses = 1;
  /// Bounds of a dynamic scale. Default lower bound: the smallest normal number.
  std::optional<double> min_loss_scale = std::nullopt;
  double max_loss_scale = 0x1p24;
  /// See GradScalerOptions.
  std::int64_t max_skips_in_a_row = 64;
  /// Gradients of low precision parameters are accumulated in fp32 (twice the memory; for long accumulation windows).
  bool fp32_gradients = false;
  /// Further modules (with `keep_batchnorm_fp32`) whose own parameters and buffers stay in fp32.
  std::function<bool(const torch::nn::Module&)> keep_fp32 = {};
  /// See GradScalerOptions.
  std::optional<World> world = std::nullopt;
};

/// A parameter of the model and its fp32 master.
struct NamedMaster {
  std::string name;
  at::Tensor master;
  at::Tensor parameter;
};

using Models = std::vector<std::reference_wrapper<torch::nn::Module>>;
using Optimizers = std::vector<std::reference_wrapper<torch::optim::Optimizer>>;

/// Mixed precision of some models and their optimizers, made by `initialize`:
///
///     auto amp = amp::initialize(*net, optimizer, amp::OptLevel::O2);
///     DistributedDataParallel ddp(net, world);
///     auto output = amp.forward(ddp, batch.data);
///     amp.scale(criterion(output, batch.target)).backward();     // as often as gradients are accumulated
///     amp.step(optimizer);                                       // unscale, check, update or skip, scale update
///
/// `step` takes the gradients with it: they are undefined afterwards, taken or skipped, so that nothing needs zeroing.
/// Zeroing (by the optimizer, the model or `zero_grad`) drops gradients in between, and works the same in all levels.
///
/// Movable. Models and optimizers must outlive it. One thread at a time.
class LOCKSTEP_API Amp {
 public:
  ~Amp();
  Amp(Amp&&) noexcept;
  Amp& operator=(Amp&&) noexcept;

  OptLevel level() const;
  const OptLevelProperties& properties() const;
  /// The level, its properties and what was overridden, in a few lines.
  std::string describe() const;

  /// `model.forward(args...)`, `model->forward(args...)` or `model(args...)`: floating tensors in `args` are cast to
  /// `cast_model_type`, at O1 the call runs under autocast, and low precision tensors come back in fp32 (see
  /// `cast_model_outputs`). Tensors may sit in containers (nested.h). `model` may be the model, a holder, a
  /// DistributedDataParallel around it, or any callable that uses it.
  template <class Model, class... Args>
  auto forward(Model&& model, Args&&... args) const {
    const Region region(*this);
    return cast_output(call(std::forward<Model>(model), cast_input(std::forward<Args>(args))...));
  }

  /// What `forward` does to its arguments and to its result.
  template <class T>
  decltype(auto) cast_input(T&& value) const {
    if constexpr (holds_tensors<T>) {
      return map_tensors(std::as_const(value), [this](const at::Tensor& t) { return cast_input_tensor(t); });
    } else {
      return std::forward<T>(value);
    }
  }
  template <class T>
  T cast_output(const T& value) const {
    return map_tensors(value, [this](const at::Tensor& t) { return cast_output_tensor(t); });
  }

  /// The loss in fp32 times a scale. Every loss of an iteration is passed through before its `backward()`.
  ///
  /// `loss_id` (below `num_losses`) picks the scale. `optimizers`: those whose parameters this loss has gradients for;
  /// empty: all. Gradients that an optimizer already holds under another scale are brought to this one, so that they
  /// can be added; an overflow found in such a sum lowers each scale that went into it.
  /// Throws InputError where an optimizer of these was unscaled and neither stepped nor zeroed.
  at::Tensor scale(const at::Tensor& loss, int loss_id = 0, const Optimizers& optimizers = {});

  /// Makes the gradients of the optimizer's parameters (with masters: of the masters) true ones in fp32, to inspect or
  /// clip them before `step`. Once, after the last backward.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Clips the gradients of the optimizer's parameters (with masters: of the masters) by their norm, all of them
  /// together, and returns the norm that the true ones had. Calls unscale_ unless that was done. A GradientTreatment
  /// given to `step` does the same without writing gradients.
  at::Tensor clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type = 2);

  /// Takes the optimizer's step, or leaves it out if a gradient holds inf or NaN. The loss scale moves as soon as no
  /// optimizer holds gradients made with it. Throws InputError, before anything is changed, where a parameter has been
  /// replaced, cast or moved since `initialize`, and where no gradient exists.
  /// A fused optimizer carries out `treatment` in its own passes.
  StepOutcome step(torch::optim::Optimizer& optimizer, const optim::GradientTreatment& treatment = {});

  /// Drops, or zeroes, the gradients of all models' parameters.
  void zero_grad(bool set_to_none = true);

  /// Current loss scale. Waits for the device.
  double loss_scale(int loss_id = 0) const;
  /// The live scale, one fp32 element; undefined before the first `scale`.
  at::Tensor scale_tensor(int loss_id = 0) const;
  /// Throws Error as `step` does after too many skips in a row. For steps that replays of a CUDA graph take.
  void check_skips();

  /// The scales and the counters that steer them, live: `loss_scaler0.scale`, ... Empty before the first `scale`.
  std::map<std::string, at::Tensor> scale_tensors() const;

  /// Parameters with masters, in the model's order, by their names in the model (with `i.` before them where there are
  /// several models). The masters are slices of one flat tensor, and up to date with writes to the parameters.
  std::vector<NamedMaster> masters() const;
  /// Takes all masters anew from the parameters. Needed by nobody in the ordinary course: `step` notices every element
  /// of a parameter that somebody else wrote, and takes its master from it.
  void refresh_masters();

  /// Scales and masters by name: `loss_scaler0.scale`, ..., `master.layer.weight`, ... With the model's and the
  /// optimizer's files it resumes bit by bit. Masters are the live tensors.
  std::map<std::string, at::Tensor> state_dict() const;
  /// Throws InputError, and changes nothing, for missing and unknown names, other sizes, and values out of range.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

  class Impl;

 private:
  friend LOCKSTEP_API Amp initialize(const Models&, const Optimizers&, OptLevel, const AmpOptions&);
  explicit Amp(std::unique_ptr<Impl> impl);

  /// Autocast where the level has it. Casts of weights do not outlive it.
  class LOCKSTEP_API Region {
   public:
    explicit Region(const Amp& amp);
    ~Region();

   private:
    AutocastStateGuard guard_;
  };

  template <class Model, class... Args>
  static auto call(Model&& model, Args&&... args) {
    if constexpr (requires { model.forward(std::forward<Args>(args)...); }) {
      return model.forward(std::forward<Args>(args)...);
    } else if constexpr (requires { model->forward(std::forward<Args>(args)...); }) {
      return model->forward(std::forward<Args>(args)...);
    } else {
      return model(std::forward<Args>(args)...);
    }
  }

  AutocastState forward_state() const;
  at::Tensor cast_input_tensor(const at::Tensor& tensor) const;
  at::Tensor cast_output_tensor(const at::Tensor& tensor) const;

  std::unique_ptr<Impl> impl_;
};

/// Prepares models and optimizers for `level`: casts parameters and buffers in place (integer ones never), and puts
/// fp32 masters in the place of low precision parameters in the optimizers' groups.
///
/// Order: build the model, convert BatchNorm, move to the device, build the optimizers, initialise mixed precision,
/// wrap in DistributedDataParallel, load state. Throws InputError, before anything is changed, where the order was
/// another: for a wrapped model, one that is initialised already or not in fp32 (or fp64), an optimizer passed twice or
/// built for tensors that are not the models'; and for overrides that do not suit the level.
LOCKSTEP_API Amp initialize(const Models& models, const Optimizers& optimizers, OptLevel level,
                            const AmpOptions& options = {});
LOCKSTEP_API Amp initialize(torch::nn::Module& model, torch::optim::Optimizer& optimizer, OptLevel level,
                            const AmpOptions& options = {});

/// The parameters of an optimizer's groups: with O2, fp32 masters in the place of low precision parameters.
LOCKSTEP_API std::vector<at::Tensor> master_params(const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::amp
