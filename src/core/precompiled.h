// SPDX-License-Identifier: Apache-2.0
// What nearly every source file of the library includes, compiled once. CUDA sources do not use it.
#pragma once
#ifdef __cplusplus
#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>
#include <vector>
#endif
