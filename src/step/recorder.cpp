// SPDX-License-Identifier: Apache-2.0
#include "step/recorder.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

namespace lockstep::step {
namespace {

class CudaRecording final : public Recording {
 public:
  explicit CudaRecording(std::unique_ptr<at::cuda::CUDAGraph> graph) : graph_(std::move(graph)) {}
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

void order(const c10::cuda::CUDAStream& before, const c10::cuda::CUDAStream& after) {
  at::cuda::CUDAEvent event;
  event.record(before);
  event.block(after);
}

class CudaRecorder final : public Recorder {
 public:
  explicit CudaRecorder(c10::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        pool_(at::cuda::graph_pool_handle()) {}

  void run(const std::function<void()>& body) override {
    const auto outside = c10::cuda::getCurrentCUDAStream(stream_.device_index());
    order(outside, stream_);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      body();
    }
    order(stream_, outside);
  }

  std::unique_ptr<Recording> record(const std::function<void()>& body) override {
    const c10::cuda::CUDAStreamGuard guard(stream_);
    stream_.synchronize();
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    // Other threads (the watcher, other ranks of this process) may go on using the device meanwhile.
    graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      body();
    } catch (...) {
      give_up(*graph);
      throw;
    }
    graph->capture_end();
    return std::make_unique<CudaRecording>(std::move(graph));
  }

 private:
  /// A capture that was spoilt must be ended all the same, or the stream stays unusable.
  static void give_up(at::cuda::CUDAGraph& graph) noexcept {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      cudaGetLastError();  // the error has been told already
    }
  }

  c10::cuda::CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
};

}  // namespace

std::unique_ptr<Recorder> make_recorder(c10::Device device) {
  return std::make_unique<CudaRecorder>(device);
}

}  // namespace lockstep::step
