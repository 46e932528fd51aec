// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/export.h"

namespace torch::nn {
class AnyModule;
class Module;
}  // namespace torch::nn
namespace torch::jit {
struct Module;
}

namespace lockstep {

/// What to do about parameters that got no gradient by the end of a backward pass that reduces.
enum class UnusedParameters : std::uint8_t {
  /// An error on every rank that names them.
  Error,
  /// They count as zero where another rank used them; where none did, their `.grad` is left as it is.
  Detect,
};

struct DataParallelOptions {
  UnusedParameters unused = UnusedParameters::Error;
  /// Bucket limits in MiB. Small buckets start early, large ones use the link better; the first one is small so that
  /// communication starts soon after backward does.
  double bucket_cap_mb = 25.0;
  double first_bucket_mb = 1.0;
  /// Reduce buckets while backward still runs. Off: all of them at its end, which suits a graph whose number of
  /// re-entrant backward passes per parameter grows from step to step.
  bool overlap = true;
  /// Copy rank 0's buffers (running statistics) to all ranks at the end of each backward pass that reduces.
  bool broadcast_buffers = true;
  /// Verify the model across ranks, copy rank 0's parameters and buffers, and prove them equal. Off: equality is the
  /// caller's affair.
  bool init_sync = true;
  /// Gradients are divided by this before they are summed and by size() / factor after; 0: by size() before, which
  /// keeps 16-bit sums in range.
  double gradient_predivide_factor = 0;
  /// Full names of parameters and buffers that are neither synchronised nor reduced.
  std::vector<std::string> ignore = {};
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

/// What is kept equal across ranks. Shared tensors may be listed more than once.
struct ModelTensors {
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
};

/// Counted since construction, except where said.
struct DataParallelStatistics {
  std::uint64_t reduced_backwards = 0;   ///< backward passes that ended with reduced gradients
  std::uint64_t quiet_backwards = 0;     ///< backward passes under no_sync
  std::uint64_t shadowed_backwards = 0;  ///< passes of other ranks that this rank joined after its inputs had ended
  std::uint64_t all_reduces =
      0;  ///< buckets handed to the all-reduce or the communication hook; in a world of one, that would have been
  std::uint64_t bytes_reduced = 0;  ///< bytes handed to them
  std::int64_t buckets = 0;         ///< number of buckets
  double exposed_seconds = 0;       ///< host time spent waiting for reductions after the last gradient
  std::vector<std::string> unused;  ///< parameters without a gradient on this rank in the last reduced backward
};

struct JoinOptions;

namespace ddp {
class Replica;

/// How a model is looked at again and again.
struct ModelView {
  std::function<ModelTensors()> list;
  /// The addresses of all parameters: the quick way to see that none was replaced. Empty: `list` has to do.
  std::function<std::vector<const void*>()> identities;
};

}  // namespace ddp
class ReplicaCheck;
class TrainStep;

/// Everything of DistributedDataParallel that does not depend on the model's type. Usable by itself for a bare list of
/// tensors. Movable, not copyable. Destroying it takes the hooks away and leaves the gradients.
class LOCKSTEP_API DataParallelBase {
 public:
  /// `list` gives the model's tensors; it is called at construction and at each step to notice replaced parameters.
  /// Throws InputError, the same on every rank, where the ranks' models differ (count, names, shapes, strides, dtypes,
  /// requires_grad), where nothing is trainable, or where a parameter is wrapped already. No data has moved then.
  DataParallelBase(std::function<ModelTensors()> list, const World& world, const DataParallelOptions& options = {});
  DataParallelBase(ModelTensors tensors, const World& world, const DataParallelOptions& options = {});
  DataParallelBase(DataParallelBase&&) noexcept;
  DataParallelBase& operator=(DataParallelBase&&) noexcept;
  ~DataParallelBase();

  /// While the guard lives, a backward pass that starts adds to `.grad` on this rank only and nothing is sent. It is
  /// the backward pass that counts, not the forward. Guards nest and survive exceptions. The first backward pass
  /// outside reduces what has been accumulated, parameters that only the quiet passes used included.
  class LOCKSTEP_API NoSync {
   public:
    explicit NoSync(std::shared_ptr<ddp::Replica> replica);
    NoSync(NoSync&&) noexcept = default;
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync();

   private:
    std::shared_ptr<ddp::Replica> replica_;
  };
  [[nodiscard]] NoSync no_sync() const;

  /// Reduces, without a backward pass, what passes under no_sync have accumulated: for a window that ends early. As at
  /// the end of a backward pass, parameters that none of them used are an error or left alone. Collective.
  void synchronize_gradients();

  /// Replaces the plain all-reduce. Once, and before the first backward; else InputError. The same hook on every rank.
  void register_comm_hook(CommHook hook);

  const World& world() const;
  /// Copies `root`'s parameters and buffers to all ranks, now. Collective.
  void broadcast_now(int root = 0) const;
  /// Fingerprint of this rank's parameters and buffers (ignored ones left out): the same for equal bits, whatever the
  /// number of ranks and the device. Local.
  std::uint64_t digest() const;
  /// Compares all ranks' tensors bit by bit through their fingerprints. Returns an empty text where all are equal, else
  /// the first tensor that differs, its first element that does, and the ranks outside of the largest group of equal
  /// ones, the same text on every rank (see ReplicaDifference). Collective.
  std::string difference() const;
  DataParallelStatistics statistics() const;
  /// The layout, a line per bucket: parameters, dtype, size.
  std::string describe() const;

 protected:
  DataParallelBase(ddp::ModelView view, const World& world, const DataParallelOptions& options);

  /// What has to be known before a forward whose backward may follow: parameters that were replaced all at once, whose
  /// hooks would never run, for one. Local; nothing under no_grad.
  void before_forward() const;
  /// How to find the names of submodules that communicate in forward. None: there are none.
  void set_forward_collectives(std::function<std::vector<std::string>()> find);

 private:
  friend class ReplicaCheck;
  friend class TrainStep;
  friend void join(const DataParallelBase&, const std::function<void()>&, const std::function<void()>&,
                   const JoinOptions&);

  std::shared_ptr<ddp::Replica> replica_;
};

namespace ddp {

LOCKSTEP_API ModelTensors tensors_of(const torch::nn::Module& module);
LOCKSTEP_API ModelTensors tensors_of(const torch::nn::AnyModule& module);
LOCKSTEP_API ModelTensors tensors_of(const torch::jit::Module& module);
/// Names of the submodules that communicate in forward (join.h).
LOCKSTEP_API std::vector<std::string> forward_collectives(const torch::nn::Module& module);
LOCKSTEP_API std::vector<std::string> forward_collectives(const torch::nn::AnyModule& module);
LOCKSTEP_API std::vector<std::string> forward_collectives(const torch::jit::Module& module);
LOCKSTEP_API std::vector<const void*> identities_of(const torch::nn::Module& module);

/// How DistributedDataParallel keeps a model: holders, shared pointers and script modules share it, a plain module is
/// referred to and must outlive the wrapper.
template <class Model>
struct Kept {
  static constexpr bool kByReference = std::is_base_of_v<torch::nn::Module, Model>;
  using Type = std::conditional_t<kByReference, Model*, Model>;

  static Type keep(Model& model) {
    if constexpr (kByReference) {
      return &model;
    } else {
      return model;
    }
  }
  static auto& module(Type& kept) {
    if constexpr (requires { *kept; }) {
      return *kept;
    } else {
      return kept;
    }
  }
};

}  // namespace ddp

/// Trains one model on all ranks of a world as if on one: every rank holds a replica, gradients are averaged during
/// backward, and replicas stay bitwise equal. `Model` is a torch::nn holder, a shared pointer to a module, a module, an
/// AnyModule, or a TorchScript module; its device, dtype and memory format stay as they are.
///
/// Order: build the model, move and cast it, build the optimizer, initialise mixed precision, then wrap.
/// Hooks sit on the parameters, so a loss made through the inner module or any other method is reduced just the same.
/// Gradients are averages over ranks: a loss that is a sum over the batch gives gradients smaller by the world's size
/// than one big batch would.
///
/// After a reduced backward every `.grad` is an alias of one flat buffer. Clearing it by `zero_grad()` (either form) is
/// right; so is keeping a handle to it: the handle then gets memory of its own at the next backward. In a world of one
/// there is no such buffer: gradients stay where autograd has put them, without a copy.
template <class Model>
class DistributedDataParallel : public DataParallelBase {
 public:
  DistributedDataParallel(Model& model, const World& world, const DataParallelOptions& options = {})
      : DataParallelBase(view(model), world, options), kept_(ddp::Kept<Model>::keep(model)) {
    set_forward_collectives(
        [kept = kept_]() mutable { return ddp::forward_collectives(ddp::Kept<Model>::module(kept)); });
  }
  DistributedDataParallel(Model&& model, const World& world,
                          const DataParallelOptions& options = {}) requires(!ddp::Kept<Model>::kByReference)
      : DistributedDataParallel(model, world, options) {}

  auto& module() { return ddp::Kept<Model>::module(kept_); }
  auto* operator->() { return &module(); }
  auto& operator*() { return module(); }

  template <class... Args>
  auto forward(Args&&... args) {
    before_forward();
    return module().forward(std::forward<Args>(args)...);
  }
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

 private:
  static ddp::ModelView view(Model& model) {
    auto kept = ddp::Kept<Model>::keep(model);
    using Module = std::remove_reference_t<decltype(ddp::Kept<Model>::module(kept))>;
    ddp::ModelView view;
    view.list = [kept]() mutable { return ddp::tensors_of(ddp::Kept<Model>::module(kept)); };
    if constexpr (std::is_base_of_v<torch::nn::Module, Module>) {
      view.identities = [kept]() mutable { return ddp::identities_of(ddp::Kept<Model>::module(kept)); };
    }
    return view;
  }

  typename ddp::Kept<Model>::Type kept_;
};

}  // namespace lockstep
