# SPDX-License-Identifier: Apache-2.0
# nccl.h must be the version torch was built with: ProcessGroupNCCL::Options holds ncclConfig_t by value.

find_path(LOCKSTEP_NCCL_INCLUDE nccl.h
  HINTS "${LOCKSTEP_TORCH_DIR}/../nvidia/nccl/include" "${LOCKSTEP_TORCH_INCLUDE}")
if(NOT LOCKSTEP_NCCL_INCLUDE)
  message(FATAL_ERROR "nccl.h not found; run `scripts/setup --cuda` or set LOCKSTEP_NCCL_INCLUDE to its folder.")
endif()
file(READ "${LOCKSTEP_NCCL_INCLUDE}/nccl.h" _nccl_text)
foreach(part MAJOR MINOR PATCH)
  string(REGEX MATCH "NCCL_${part} ([0-9]+)" _ "${_nccl_text}")
  set(_nccl_${part} "${CMAKE_MATCH_1}")
endforeach()
set(LOCKSTEP_NCCL_VERSION "${_nccl_MAJOR}.${_nccl_MINOR}.${_nccl_PATCH}")

# Which NCCL each supported torch was built with; "any" where this table has not been told.
set(_nccl_of_torch_2.11 2.28.9)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _torch_minor "${LOCKSTEP_TORCH_FOUND_VERSION}")
set(_wanted "${_nccl_of_torch_${_torch_minor}}")
if(_wanted AND NOT _wanted VERSION_EQUAL LOCKSTEP_NCCL_VERSION)
  message(FATAL_ERROR "nccl.h in ${LOCKSTEP_NCCL_INCLUDE} is ${LOCKSTEP_NCCL_VERSION}, but torch "
    "${LOCKSTEP_TORCH_FOUND_VERSION} was built with ${_wanted}; install nvidia-nccl-cu13==${_wanted}.")
endif()
message(STATUS "NCCL ${LOCKSTEP_NCCL_VERSION} in ${LOCKSTEP_NCCL_INCLUDE}")
target_include_directories(lockstep_torch_cuda SYSTEM INTERFACE "${LOCKSTEP_NCCL_INCLUDE}")
