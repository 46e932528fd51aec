// SPDX-License-Identifier: Apache-2.0
// Marks functions that C++ and CUDA sources share.
#pragma once

#ifdef __CUDACC__
#define LOCKSTEP_BOTH __host__ __device__ __forceinline__
#else
#define LOCKSTEP_BOTH inline __attribute__((always_inline))
#endif
