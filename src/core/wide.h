// SPDX-License-Identifier: Apache-2.0
// Runs a loop with the machine's wide vectors, in a library built for any machine: the loop is compiled twice and the
// choice made at run time. For files built with -O3 and -ffp-contract=off.
#pragma once

namespace lockstep::core {

#ifdef __x86_64__
template <class Loop>
__attribute__((target("avx2,fma,f16c"), flatten, noinline)) void with_avx2(const Loop& loop) {
  loop();
}

inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
#else
template <class Loop>
void with_avx2(const Loop& loop) {
  loop();
}

inline bool has_avx2() {
  return false;
}
#endif

/// Calls `loop()`, whose body must inline entirely.
template <class Loop>
void wide(const Loop& loop) {
  if (has_avx2()) {
    return with_avx2(loop);
  }
  loop();
}

}  // namespace lockstep::core
