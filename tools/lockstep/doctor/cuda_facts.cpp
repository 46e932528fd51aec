// SPDX-License-Identifier: Apache-2.0
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include "core/check.h"
#include "lockstep/doctor/facts.h"

namespace lockstep::doctor {
namespace {

using core::str;

/// CUDA's coding of versions: 13000 is 13.0.
std::string cuda_version(int code) {
  return str(code / 1000, ".", code % 1000 / 10);
}

/// NCCL's since 2.9: 22809 is 2.28.9.
std::string nccl_version(int code) {
  return str(code / 10000, ".", code / 100 % 100, ".", code % 100);
}

Finding runtime_fact() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto text = str("CUDA ", cuda_version(runtime), ", built with ", cuda_version(CUDART_VERSION),
                        "; the driver can ", cuda_version(driver));
  if (runtime / 1000 != CUDART_VERSION / 1000) {
    return {Grade::bad, text + ": another major version was loaded than this build was made for"};
  }
  if (driver == 0) {
    return {Grade::note, str("CUDA ", cuda_version(runtime), ", and no NVIDIA driver: training runs on the CPU")};
  }
  return driver / 1000 < runtime / 1000 ? Finding{Grade::bad, text + ": the driver is too old"}
                                        : Finding{Grade::ok, text};
}

/// Torch brings NCCL; nothing here links it, so that a torch without one still runs.
Finding nccl_fact() {
  using GetVersion = ncclResult_t (*)(int*);
  const auto get = reinterpret_cast<GetVersion>(::dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int loaded = 0;
  if (get == nullptr || get(&loaded) != ncclSuccess) {
    return {Grade::bad, "this torch brings no NCCL, which ranks on several GPUs need"};
  }
  if (loaded != NCCL_VERSION_CODE) {
    return {Grade::bad, str("NCCL ", nccl_version(loaded), " was loaded, but this build was made for ",
                            nccl_version(NCCL_VERSION_CODE), ", and its structures differ")};
  }
  return {Grade::ok, "NCCL " + nccl_version(loaded)};
}

Finding device_fact(int device) {
  cudaDeviceProp properties{};
  if (const auto error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) {
    return {Grade::bad, str("device ", device, ": ", cudaGetErrorString(error))};
  }
  const auto text = str("device ", device, ": ", properties.name, ", ", properties.totalGlobalMem >> 20, " MiB, sm_",
                        properties.major, properties.minor, ", ", properties.multiProcessorCount, " multiprocessors");
  return properties.major < 8 ? Finding{Grade::bad, text + ": older than sm_80, which this build has no kernels for"}
                              : Finding{Grade::ok, text};
}

Finding link_fact(int devices) {
  int linked = 0;
  const int pairs = devices * (devices - 1);
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      int can = 0;
      linked += a != b && cudaDeviceCanAccessPeer(&can, a, b) == cudaSuccess && can != 0;
    }
  }
  return {linked == pairs ? Grade::ok : Grade::note,
          str("direct access between devices: ", linked, " of ", pairs, " pairs",
              linked == pairs ? "" : "; the others go through the host's memory")};
}

}  // namespace

Findings cuda_facts() {
  Findings found{runtime_fact(), nccl_fact()};
  const int devices = cuda_devices();
  for (int device = 0; device < devices; ++device) {
    found.push_back(device_fact(device));
  }
  if (devices > 1) {
    found.push_back(link_fact(devices));
  }
  if (devices == 0) {
    found.push_back({Grade::note, "no CUDA device: training runs on the CPU"});
  }
  return found;
}

int cuda_devices() {
  return static_cast<int>(c10::cuda::device_count());
}

}  // namespace lockstep::doctor
