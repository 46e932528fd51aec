// SPDX-License-Identifier: Apache-2.0
// CUDA graphs, as far as a captured step needs them.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace lockstep::step {

/// Device work recorded once. Replays run on the current stream, without waiting.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void replay() = 0;
};

/// Recordings of one recorder share memory: they must be replayed in the order in which they were made, or a later one
/// several times in a row.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// Runs `body` on the stream that recordings are made on, in order with the current stream on both sides. What is
  /// recorded later must have run so before: autograd ties gradients to the stream of their first use.
  virtual void run(const std::function<void()>& body) = 0;
  /// Records what `body` sends to the device; nothing of it runs. Throws what `body` throws, or c10::Error if `body`
  /// waited for the device or read from it.
  virtual std::unique_ptr<Recording> record(const std::function<void()>& body) = 0;
};

/// Null in a build without CUDA.
std::unique_ptr<Recorder> make_recorder(c10::Device device);

}  // namespace lockstep::step
