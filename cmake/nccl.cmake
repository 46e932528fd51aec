# SPDX-License-Identifier: Apache-2.0
# nccl.h must be the version torch was built with: ProcessGroupNCCL::Options holds ncclConfig_t by value.

find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS "${LOCKSTEP_TORCH}/../nvidia/nccl/include" "${LOCKSTEP_TORCH}/include"
  DOC "Folder that holds nccl.h")
if(NOT LOCKSTEP_NCCL_INCLUDE)
  message(FATAL_ERROR "nccl.h not found; run `scripts/setup --cuda`, or set LOCKSTEP_NCCL_INCLUDE to its folder.")
endif()

file(STRINGS "${LOCKSTEP_NCCL_INCLUDE}/nccl.h" _lines REGEX "define NCCL_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX MATCHALL " [0-9]+" _numbers "${_lines}")
string(REGEX REPLACE ";? " "." LOCKSTEP_NCCL_VERSION "${_numbers}")
string(SUBSTRING "${LOCKSTEP_NCCL_VERSION}" 1 -1 LOCKSTEP_NCCL_VERSION)

# What each torch asks for in its package's requirements.
set(_nccl_of_torch_2.11 2.28.9)
set(_nccl_of_torch_2.12 2.29.7)
set(_nccl_of_torch_2.13 2.29.7)
set(_nccl_of_torch_2.14 2.30.7)
set(_nccl_of_torch_2.15 2.30.7)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _minor "${LOCKSTEP_TORCH_VERSION}")
set(_wanted "${_nccl_of_torch_${_minor}}")
if(NOT LOCKSTEP_NCCL_VERSION VERSION_EQUAL _wanted)
  message(FATAL_ERROR "nccl.h in ${LOCKSTEP_NCCL_INCLUDE} is ${LOCKSTEP_NCCL_VERSION}, but torch "
    "${LOCKSTEP_TORCH_VERSION} was built with ${_wanted}. Run `scripts/setup --cuda`, or set LOCKSTEP_NCCL_INCLUDE "
    "to a folder with that version's nccl.h.")
endif()
message(STATUS "NCCL ${LOCKSTEP_NCCL_VERSION} in ${LOCKSTEP_NCCL_INCLUDE}")
