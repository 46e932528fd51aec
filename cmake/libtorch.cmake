# SPDX-License-Identifier: Apache-2.0
# Imported targets made from a torch folder: a wheel's `torch` package or an unpacked LibTorch zip.
#
#   lockstep::torch_cpu   headers, libtorch_cpu and libc10
#   lockstep::torch_cuda  the same with libtorch_cuda and libc10_cuda
#
# Torch's own CMake package is not used: that of a CUDA wheel demands a CUDA toolkit even for CPU work.
# The folder is the first of: LOCKSTEP_TORCH (cache or environment), the project's .venv, the active python3.

set(LOCKSTEP_TORCH "$ENV{LOCKSTEP_TORCH}" CACHE PATH "Torch folder (the one that holds lib/libtorch_cpu.so)")

function(_lockstep_find_torch out)
  if(LOCKSTEP_TORCH)
    set(${out} "${LOCKSTEP_TORCH}" PARENT_SCOPE)
    return()
  endif()
  file(GLOB local "${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  if(local)
    list(GET local 0 found)
    set(${out} "${found}" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND python3 -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

_lockstep_find_torch(LOCKSTEP_TORCH_DIR)
if(NOT EXISTS "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch found (looked in '${LOCKSTEP_TORCH_DIR}'). "
    "Run scripts/setup, or set LOCKSTEP_TORCH to a folder that holds lib/libtorch_cpu.so.")
endif()

# The version is read from the header, so that a zip without Python files works too.
set(LOCKSTEP_TORCH_INCLUDE "${LOCKSTEP_TORCH_DIR}/include")
set(_version_header "${LOCKSTEP_TORCH_INCLUDE}/torch/headeronly/version.h")
if(NOT EXISTS "${_version_header}")
  set(_version_header "${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/api/include/torch/version.h")
endif()
file(READ "${_version_header}" _version_text)
string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+)" _ "${_version_text}")
set(_major "${CMAKE_MATCH_1}")
string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _ "${_version_text}")
set(_minor "${CMAKE_MATCH_1}")
string(REGEX MATCH "TORCH_VERSION_PATCH ([0-9]+)" _ "${_version_text}")
set(LOCKSTEP_TORCH_FOUND_VERSION "${_major}.${_minor}.${CMAKE_MATCH_1}")
if(LOCKSTEP_TORCH_FOUND_VERSION VERSION_LESS 2.11 OR LOCKSTEP_TORCH_FOUND_VERSION VERSION_GREATER_EQUAL 2.16)
  message(FATAL_ERROR "LibTorch in ${LOCKSTEP_TORCH_DIR} is ${LOCKSTEP_TORCH_FOUND_VERSION}; "
    "Lockstep supports 2.11 to 2.15. Point LOCKSTEP_TORCH at another folder.")
endif()
message(STATUS "LibTorch ${LOCKSTEP_TORCH_FOUND_VERSION} in ${LOCKSTEP_TORCH_DIR}")

function(_lockstep_import name library)
  add_library(${name} SHARED IMPORTED GLOBAL)
  set_target_properties(${name} PROPERTIES
    IMPORTED_LOCATION "${LOCKSTEP_TORCH_DIR}/lib/${library}" IMPORTED_NO_SONAME OFF
    IMPORTED_SONAME "${library}")
endfunction()

_lockstep_import(lockstep_c10 libc10.so)
_lockstep_import(lockstep_torch_cpu_library libtorch_cpu.so)

add_library(lockstep_torch_cpu INTERFACE)
add_library(lockstep::torch_cpu ALIAS lockstep_torch_cpu)
target_include_directories(lockstep_torch_cpu SYSTEM INTERFACE
  "${LOCKSTEP_TORCH_INCLUDE}" "${LOCKSTEP_TORCH_INCLUDE}/torch/csrc/api/include")
target_compile_definitions(lockstep_torch_cpu INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
target_link_libraries(lockstep_torch_cpu INTERFACE lockstep_torch_cpu_library lockstep_c10)
# libtorch_cpu of a CUDA wheel names symbols of libraries that a CPU program never touches.
target_link_options(lockstep_torch_cpu INTERFACE
  -Wl,--allow-shlib-undefined "-Wl,-rpath,${LOCKSTEP_TORCH_DIR}/lib")

if(LOCKSTEP_CUDA)
  if(NOT EXISTS "${LOCKSTEP_TORCH_DIR}/lib/libtorch_cuda.so")
    message(FATAL_ERROR "LibTorch in ${LOCKSTEP_TORCH_DIR} has no CUDA part (lib/libtorch_cuda.so is missing); "
      "configure the cpu preset, or point LOCKSTEP_TORCH at a CUDA build.")
  endif()
  _lockstep_import(lockstep_c10_cuda libc10_cuda.so)
  _lockstep_import(lockstep_torch_cuda_library libtorch_cuda.so)
  add_library(lockstep_torch_cuda INTERFACE)
  add_library(lockstep::torch_cuda ALIAS lockstep_torch_cuda)
  target_compile_definitions(lockstep_torch_cuda INTERFACE USE_C10D_NCCL)
  # Kernels register themselves when the library loads, so it stays linked even if no symbol is named.
  target_link_libraries(lockstep_torch_cuda INTERFACE lockstep_torch_cpu
    -Wl,--no-as-needed lockstep_torch_cuda_library lockstep_c10_cuda -Wl,--as-needed CUDA::cudart)
endif()
