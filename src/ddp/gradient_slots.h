// SPDX-License-Identifier: Apache-2.0
// Moves gradients between `.grad` and the arena. One read and one write per element: autograd's buffer is read, scaled
// into the arena, and dropped; `.grad` then names the arena. Where there is nothing to reduce they stay where they are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "ddp/waiting_gradients.h"
#include "lockstep/ddp/data_parallel.h"

namespace lockstep::ddp {

class GradientSlots {
 public:
  GradientSlots(const std::vector<NamedTensor>& parameters, const core::BucketLimits& limits);

  /// Makes the arena. Without one gradients are left in place: they are noted and checked, never moved.
  void allocate();
  bool in_place() const { return !arena_; }

  const core::Layout& layout() const { return layout_; }
  int size() const { return static_cast<int>(parameters_.size()); }
  const std::string& name(int index) const { return parameters_[static_cast<std::size_t>(index)].name; }
  const at::Tensor& parameter(int index) const { return parameters_[static_cast<std::size_t>(index)].tensor; }

  /// Moves `.grad` into its slot, at the latest when its bucket is delivered, and leaves it undefined, so that a later
  /// gradient of the same pass arrives alone and is added. An undefined gradient leaves zeros. Returns whether there
  /// was a gradient. Throws InputError where dtype, device or shape are no longer those of the layout.
  bool take(int index);
  bool taken(int index) const { return taken_[static_cast<std::size_t>(index)]; }

  /// Writes what waits for its bucket: from then on the slots hold what was taken.
  void deliver(int bucket);

  /// Makes `.grad` an alias of the slot.
  void publish(int index);
  /// Parts gradients that autograd has made share memory, where they are its own.
  void separate();

  const at::Tensor& alias(int index) const { return arena_->alias(index); }

  /// Elements of a bucket, one-dimensional.
  at::Tensor bucket(int index) const;
  std::uint64_t bucket_bytes(int index) const;

  /// The pass is over, well or not: nothing is kept alive for it any more.
  void end();

  /// A new pass: gradients are multiplied by `scale` on their way into the arena.
  void begin(double scale);

  /// The layout, a line per bucket: parameters, dtype, size.
  std::string describe() const;

 private:
  void check_gradient(int index, const at::Tensor& grad) const;
  void let_holder_keep(int index, const at::Tensor& grad);
  void write(int index, const at::Tensor& grad);

  std::vector<NamedTensor> parameters_;
  std::vector<core::TensorSpec> specs_;
  core::Layout layout_;
  std::optional<core::Arena> arena_;
  double scale_value_ = 1;
  at::Tensor scale_;  // a wrapped number: it never promotes the dtype of what it multiplies
  std::vector<bool> taken_;
  std::vector<int> bucket_of_;
  std::vector<WaitingGradients> waiting_;  // for each bucket
};

}  // namespace lockstep::ddp
