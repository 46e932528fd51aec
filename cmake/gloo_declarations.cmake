# SPDX-License-Identifier: Apache-2.0
# Torch wheels ship ProcessGroupGloo.hpp but not the gloo headers it includes. Only pointers to gloo's types are
# used, so a page of declarations stands in for them; real headers win where they exist.

if(NOT EXISTS "${LOCKSTEP_TORCH}/include/gloo/context.h")
  target_include_directories(lockstep::torch_headers SYSTEM INTERFACE "${PROJECT_SOURCE_DIR}/src/comm/gloo_declarations")
endif()
