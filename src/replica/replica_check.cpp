// SPDX-License-Identifier: Apache-2.0
#include "lockstep/replica/replica_check.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "core/check.h"
#include "core/digest.h"
#include "ddp/replica.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/ddp/data_parallel.h"
#include "replica/fingerprint.h"
#include "replica/optimizer_entries.h"
#include "replica/watch.h"

namespace lockstep {

using core::str;
using replica::Entries;
using replica::Identities;

class ReplicaCheck::Impl {
 public:
  Impl(const World& world, const ReplicaCheckOptions& chosen)
      : options(chosen),
        watch(
            world, [this] { return entries(); }, chosen.every, chosen.on_mismatch) {}

  Entries entries() const {
    Entries entries;
    Identities identities;
    for (std::size_t i = 0; i < models.size(); ++i) {
      append_model(entries, identities, models[i](), models.size() > 1 ? str("model ", i, " ") : "");
    }
    for (const auto& master : masters) {
      identities[master.master.unsafeGetTensorImpl()] = {master.name, false};
    }
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      const auto prefix = optimizers.size() > 1 ? str("optimizer ", i, " ") : "";
      replica::append_optimizer(entries, identities, *optimizers[i], prefix);
    }
    for (const auto& source : further) {
      source(entries);
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.kind < b.kind; });
    return entries;
  }

  std::uint64_t own_gradient_digest() const {
    std::vector<at::Tensor> own;
    for (const auto& digests : gradients) {
      own.push_back(digests->own().cpu());
    }
    return own.empty() ? 0 : core::digest(core::digests_of(own));
  }

  void watch_gradients(std::shared_ptr<const ddp::GradientDigests> digests) {
    const auto prefix = gradients.empty() ? std::string() : str("model ", gradients.size(), " ");
    further.push_back([prefix, reduced = digests->reduced()](Entries& entries) {
      for (std::int64_t bucket = 0; bucket < reduced.numel(); ++bucket) {
        entries.push_back({StateKind::Gradient, str(prefix, "bucket ", bucket, " (its hash)"), reduced[bucket]});
      }
    });
    gradients.push_back(std::move(digests));
    watch.set_evidence([this] { return core::digest_text(own_gradient_digest()); });
  }

  std::vector<std::function<ModelTensors()>> models;
  std::vector<amp::NamedMaster> masters;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<std::function<void(Entries&)>> further;
  std::vector<std::shared_ptr<const ddp::GradientDigests>> gradients;
  ReplicaCheckOptions options;
  replica::Watch watch;

 private:
  static void append_model(Entries& entries, Identities& identities, const ModelTensors& model,
                           const std::string& prefix) {
    for (const auto& [name, tensor] : model.parameters) {
      auto& identity = identities[tensor.unsafeGetTensorImpl()];
      if (!identity.listed) {
        identity = {prefix + name, true};
        entries.push_back({StateKind::Parameter, identity.name, tensor});
      }
    }
    for (const auto& [name, tensor] : model.buffers) {
      entries.push_back({StateKind::Buffer, prefix + name, tensor});
    }
  }
};

ReplicaCheck::ReplicaCheck(const World& world, const ReplicaCheckOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
ReplicaCheck::~ReplicaCheck() = default;
ReplicaCheck::ReplicaCheck(ReplicaCheck&&) noexcept = default;
ReplicaCheck& ReplicaCheck::operator=(ReplicaCheck&&) noexcept = default;

ReplicaCheck& ReplicaCheck::attach(const DataParallelBase& ddp) {
  ddp.replica_->stop_watching();
  if (impl_->options.gradients) {
    impl_->watch_gradients(ddp.replica_->reducer().hash_gradients());
  }
  impl_->models.push_back([replica = ddp.replica_, buffers = impl_->options.buffers] {
    auto tensors = replica->tensors();
    const bool where_broadcast = buffers == CheckedBuffers::WhereBroadcast && replica->buffers_are_equal();
    if (buffers != CheckedBuffers::All && !where_broadcast) {
      tensors.buffers.clear();
    }
    return tensors;
  });
  return *this;
}

ReplicaCheck& ReplicaCheck::attach(const torch::nn::Module& module) {
  impl_->models.push_back([&module, all = impl_->options.buffers == CheckedBuffers::All] {
    auto tensors = ddp::tensors_of(module);
    if (!all) {
      tensors.buffers.clear();
    }
    return tensors;
  });
  return *this;
}

ReplicaCheck& ReplicaCheck::attach(torch::optim::Optimizer& optimizer) {
  impl_->optimizers.push_back(&optimizer);
  return *this;
}

ReplicaCheck& ReplicaCheck::attach(const amp::GradScaler& scaler) {
  impl_->further.push_back([&scaler](Entries& entries) {
    for (const auto& [name, tensor] : scaler.state_tensors()) {
      entries.push_back({StateKind::LossScale, name, tensor});
    }
  });
  return *this;
}

ReplicaCheck& ReplicaCheck::attach(const amp::Amp& amp) {
  const auto masters = amp.masters();
  impl_->masters.insert(impl_->masters.end(), masters.begin(), masters.end());
  impl_->further.push_back([&amp](Entries& entries) {
    for (const auto& [name, tensor] : amp.scale_tensors()) {
      entries.push_back({StateKind::LossScale, name, tensor});
    }
  });
  return *this;
}

ReplicaCheck& ReplicaCheck::cover(const std::string& name, std::function<std::vector<at::Tensor>()> list) {
  impl_->further.push_back([name, list = std::move(list)](Entries& entries) {
    const auto tensors = list();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      entries.push_back({StateKind::Other, tensors.size() > 1 ? str(name, ".", i) : name, tensors[i]});
    }
  });
  return *this;
}

void ReplicaCheck::step() {
  impl_->watch.step();
}
void ReplicaCheck::compare() {
  impl_->watch.compare();
}
std::optional<ReplicaReport> ReplicaCheck::verdict() {
  return impl_->watch.verdict();
}
std::uint64_t ReplicaCheck::digest() const {
  return replica::digest_of(impl_->entries());
}
std::uint64_t ReplicaCheck::own_gradient_digest() const {
  return impl_->own_gradient_digest();
}
std::int64_t ReplicaCheck::steps() const {
  return impl_->watch.steps();
}
const std::optional<ReplicaReport>& ReplicaCheck::last_report() const {
  return impl_->watch.last_report();
}

}  // namespace lockstep
