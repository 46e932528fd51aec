// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/export.h"

namespace c10d {
class Store;
}

namespace lockstep {

enum class ReduceOp : std::uint8_t { Sum, Average, Min, Max };

/// Which library moves the bytes. `Auto`: NCCL for a CUDA device of a build that has it, else Gloo; a world of one
/// always uses `Self`, which moves nothing. Ranks that have to share a device get Gloo, which NCCL would refuse.
enum class BackendKind : std::uint8_t { Auto, Self, Gloo, Nccl };

/// What a collective is for. It appears in error texts, and ranks whose labels differ are never paired.
struct CallLabel {
  /// For people: a tensor's or a bucket's name. Not compared between ranks.
  std::string name = {};
  /// Compared between ranks, together with the operation, the dtype and the size: a step or bucket number.
  std::uint32_t tag = 0;
};

/// A collective under way. Tensors it uses stay alive until it is done. Copies refer to the same collective.
class LOCKSTEP_API Work {
 public:
  class Impl;

  /// A collective that is already done (a world of one, an empty tensor).
  Work() = default;
  explicit Work(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  /// Blocks until the result is in the tensors; on CUDA it only makes the current stream wait.
  /// Throws WorldError with the operation, its name, number and the first failing rank's own words. May be called
  /// again.
  void wait();

  /// True once the result is there, or once `wait` would throw. Never blocks.
  bool done() const;

 private:
  std::shared_ptr<Impl> impl_;
};

/// A store of c10d's, made from a `c10::intrusive_ptr` of any of them, held without c10d's headers.
class StoreHandle {
 public:
  StoreHandle() = default;
  template <class Store>
  StoreHandle(c10::intrusive_ptr<Store> store) : store_(store.get(), [store](c10d::Store*) {}) {}

  explicit operator bool() const { return store_ != nullptr; }
  c10d::Store* get() const { return store_.get(); }

 private:
  std::shared_ptr<c10d::Store> store_;
};

/// How ranks find each other. Every field has a default that suits one machine.
struct WorldOptions {
  int rank = 0;
  int size = 1;
  /// Rank and number of ranks on this machine; -1: the same as rank and size.
  int local_rank = -1;
  int local_size = -1;
  /// Device of this rank; none: CUDA device `local_rank` in a build and on a machine with CUDA, else the CPU.
  std::optional<c10::Device> device = std::nullopt;
  BackendKind backend = BackendKind::Auto;
  /// Where rank 0 serves the store. Port 0 is only legal with `store` or a world of one.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  /// The store is already served there (by a launcher): rank 0 connects as a client too.
  bool store_is_external = false;
  /// Prefix for every key, so that restarts do not read the keys of an earlier attempt.
  std::string store_prefix = {};
  /// A store of the caller's, used instead of an address; the world holds a reference.
  StoreHandle store = {};
  /// A collective that takes longer fails on every rank that waits for it.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// A rank whose heartbeat is not seen for this long counts as lost.
  std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10);
  /// After this long in one collective, ranks compare what they are in, and end if they differ.
  std::chrono::milliseconds mismatch_after = std::chrono::seconds(5);
  /// A pipe on which a launcher tells what became of the other ranks; -1: none.
  int launcher_events_fd = -1;
  /// Name of the network interface Gloo binds to; empty: the one that `master_addr` is reached by.
  std::string interface = {};
};

/// A group of ranks and this process's (or thread's) place in it. A small handle: copies share one group. The default
/// is a world of one on the CPU, for which every collective is a no-op, on tensors of any device.
///
/// Collectives must be called in the same order on all ranks, one thread per rank at a time. Tensors are the live ones:
/// contiguous (non-overlapping and dense for `all_reduce` and `broadcast`), on the world's device (Gloo: also on the
/// CPU), of the same dtype and size on every rank. Violations that can be seen locally throw InputError and send
/// nothing; ranks that call different collectives end with WorldError after `mismatch_after`, and are never paired.
class LOCKSTEP_API World {
 public:
  World();
  explicit World(const WorldOptions& options);

  /// Reads torchrun's, SLURM's, OpenMPI's or PMI's variables, in this order; none of them set: a world of one.
  /// `defaults` supplies what the environment does not say (timeouts, device, backend).
  /// Throws InputError that lists the variables found where they are contradictory or half set.
  static World from_environment(const WorldOptions& defaults = {});

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  c10::Device device() const;
  BackendKind backend() const;
  std::chrono::milliseconds timeout() const;

  /// Reduces `tensor` in place over all ranks; every rank gets the same bits. Average divides after the sum.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::Sum, const CallLabel& label = {}) const;
  /// Overwrites `tensor` with rank `root`'s, in place, byte for byte in memory order.
  Work broadcast(const at::Tensor& tensor, int root = 0, const CallLabel& label = {}) const;
  /// `output` (size() times `input`'s elements) becomes the concatenation of all inputs in rank order.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, const CallLabel& label = {}) const;
  /// `output` becomes this rank's 1/size() of the element-wise reduction of all inputs.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op = ReduceOp::Sum,
                      const CallLabel& label = {}) const;
  /// Returns once every rank has called it.
  void barrier(const CallLabel& label = {}) const;

  /// Each rank's text, in rank order, on every rank. Texts may differ in length. Blocks. For control, not for data.
  std::vector<std::string> all_gather_text(const std::string& text, const CallLabel& label = {}) const;

  /// Ranks with the same `color` form a new world, ordered by `key`, then by rank. All ranks must call it; a negative
  /// color takes no part and gets a world of one. Errors of one group reach the others.
  World split(int color, int key = 0) const;

  /// Ends this world on every rank: all that wait, and all later collectives, throw WorldError with this text (or with
  /// that of an earlier failure). Returns the text that won.
  std::string fail(const std::string& text) const;

  /// Throws WorldError if some rank has failed. One atomic read.
  void check() const;

  /// Collectives issued by this rank so far (barriers included), for tests and statistics.
  std::uint64_t collectives_issued() const;

  class Impl;

 private:
  explicit World(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace lockstep
