// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/data_parallel.h"

#include <c10/core/GradMode.h>

#include "ddp/proof.h"
#include "ddp/replica.h"
#include "replica/fingerprint.h"

namespace lockstep {

DataParallelBase::DataParallelBase(ddp::ModelView view, const World& world, const DataParallelOptions& options)
    : replica_(std::make_shared<ddp::Replica>(std::move(view), world, options)) {}

DataParallelBase::DataParallelBase(std::function<ModelTensors()> list, const World& world,
                                   const DataParallelOptions& options)
    : DataParallelBase(ddp::ModelView{std::move(list), nullptr}, world, options) {}

DataParallelBase::DataParallelBase(ModelTensors tensors, const World& world, const DataParallelOptions& options)
    : DataParallelBase(
          ddp::ModelView{[tensors = std::move(tensors)] { return tensors; }, [] { return std::vector<const void*>(); }},
          world, options) {}

DataParallelBase::DataParallelBase(DataParallelBase&&) noexcept = default;
DataParallelBase& DataParallelBase::operator=(DataParallelBase&&) noexcept = default;
DataParallelBase::~DataParallelBase() = default;

DataParallelBase::NoSync::NoSync(std::shared_ptr<ddp::Replica> replica) : replica_(std::move(replica)) {
  replica_->reducer().add_silence(1);
}

DataParallelBase::NoSync::~NoSync() {
  if (replica_) {
    replica_->reducer().add_silence(-1);
  }
}

DataParallelBase::NoSync DataParallelBase::no_sync() const {
  return NoSync(replica_);
}
void DataParallelBase::synchronize_gradients() {
  replica_->reducer().reduce_now();
}
void DataParallelBase::register_comm_hook(CommHook hook) {
  replica_->reducer().set_hook(std::move(hook));
}
const World& DataParallelBase::world() const {
  return replica_->world();
}
void DataParallelBase::broadcast_now(int root) const {
  replica_->broadcast(root);
}
std::uint64_t DataParallelBase::digest() const {
  return replica::digest_of(ddp::entries_of(replica_->tensors()));
}
std::string DataParallelBase::difference() const {
  return ddp::first_difference(world(), replica_->tensors());
}
DataParallelStatistics DataParallelBase::statistics() const {
  return replica_->reducer().statistics();
}
std::string DataParallelBase::describe() const {
  return replica_->reducer().describe();
}
void DataParallelBase::before_forward() const {
  if (c10::GradMode::is_enabled()) {
    replica_->reducer().before_forward();
    replica_->check_parameters_unchanged();
  }
}
void DataParallelBase::set_forward_collectives(std::function<std::vector<std::string>()> find) {
  replica_->set_forward_collectives(std::move(find));
}

}  // namespace lockstep
