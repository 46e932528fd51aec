# SPDX-License-Identifier: Apache-2.0
# Imported targets made from a torch folder: a wheel's `torch` package or an unpacked LibTorch zip.
#
#   lockstep::torch_headers  include folders and definitions, nothing to link
#   lockstep::torch_cpu      the same with libtorch_cpu and libc10
#   lockstep::torch_cuda     the same with libtorch_cuda, libc10_cuda and the CUDA runtime
#
#   lockstep_import_torch(FROM <version> BELOW <version> CUDA <bool> HINTS <folder or pattern>...)
#
# takes the folder from LOCKSTEP_TORCH (cache, else environment). Where that is not set it takes the first usable one of
# the active python3's torch and the hints, and remembers it in the cache. It sets LOCKSTEP_TORCH_VERSION.
# Torch's own CMake package is not used: that of a CUDA wheel demands a CUDA toolkit even for CPU work.

set(_lockstep_cmake_dir "${CMAKE_CURRENT_LIST_DIR}")
set(LOCKSTEP_TORCH "" CACHE PATH "Torch folder (the one that holds lib/libtorch_cpu.so)")

# The version in the folder's headers (a zip has no Python files to ask), or nothing.
function(_lockstep_torch_version folder out)
  set(${out} "" PARENT_SCOPE)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${folder}/include/${header}")
      file(STRINGS "${folder}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      string(REPLACE ";" "." version "${numbers}")
      set(${out} "${version}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Why the folder cannot be used, or nothing.
function(_lockstep_torch_fault folder from below cuda out)
  _lockstep_torch_version("${folder}" version)
  set(fault "")
  if(NOT EXISTS "${folder}/lib/libtorch_cpu.so" OR NOT version)
    set(fault "it holds no lib/libtorch_cpu.so with headers")
  elseif(version VERSION_LESS from OR NOT version VERSION_LESS below)
    set(fault "it is torch ${version}, outside the supported range (at least ${from}, below ${below})")
  elseif(NOT EXISTS "${folder}/include/torch/csrc/distributed/c10d/ProcessGroupGloo.hpp")
    set(fault "it was built without torch.distributed")
  elseif(cuda AND NOT EXISTS "${folder}/lib/libtorch_cuda.so")
    set(fault "it has no CUDA part (lib/libtorch_cuda.so)")
  else()
    file(STRINGS "${folder}/lib/libc10.so" new_strings REGEX "__cxx11" LIMIT_COUNT 1)
    if(NOT new_strings)
      set(fault "it was built with the std::string of before C++11, which cannot be linked with today's")
    endif()
  endif()
  set(${out} "${fault}" PARENT_SCOPE)
endfunction()

function(_lockstep_torch_candidates out)
  execute_process(
    COMMAND python3 -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE active OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(GLOB hinted ${ARGN})
  set(${out} ${active} ${hinted} PARENT_SCOPE)
endfunction()

# The first usable folder goes to LOCKSTEP_TORCH in the cache; none is an error that tells what was seen.
function(_lockstep_choose_torch from below cuda)
  set(candidates "${LOCKSTEP_TORCH}")
  if(NOT candidates)
    set(candidates "$ENV{LOCKSTEP_TORCH}")
  endif()
  set(seen "")
  if(NOT candidates)
    _lockstep_torch_candidates(candidates ${ARGN})
    set(seen "  LOCKSTEP_TORCH is not set.\n")
  endif()
  foreach(folder IN LISTS candidates)
    _lockstep_torch_fault("${folder}" ${from} ${below} "${cuda}" fault)
    if(NOT fault)
      set(LOCKSTEP_TORCH "${folder}" CACHE PATH "" FORCE)
      return()
    endif()
    string(APPEND seen "  ${folder}: ${fault}\n")
  endforeach()
  message(FATAL_ERROR "No usable LibTorch.\n${seen}"
    "Run scripts/setup, or set LOCKSTEP_TORCH to a folder that holds lib/libtorch_cpu.so.")
endfunction()

# CUDA's runtime is part of the interface, so toolkit and torch must be of one major version.
function(_lockstep_check_cuda_major)
  file(STRINGS "${LOCKSTEP_TORCH}/lib/libc10_cuda.so" runtime REGEX "libcudart.*\\.so\\.[0-9]+" LIMIT_COUNT 1)
  string(REGEX MATCH "\\.so\\.([0-9]+)" _ "${runtime}")
  if(NOT CMAKE_MATCH_1 STREQUAL CUDAToolkit_VERSION_MAJOR)
    message(FATAL_ERROR "LibTorch in ${LOCKSTEP_TORCH} was built for CUDA ${CMAKE_MATCH_1}, "
      "but the CUDA toolkit in ${CUDAToolkit_BIN_DIR} is ${CUDAToolkit_VERSION}.")
  endif()
endfunction()

function(_lockstep_import name)
  add_library(lockstep::${name} SHARED IMPORTED GLOBAL)
  set_target_properties(lockstep::${name} PROPERTIES
    IMPORTED_LOCATION "${LOCKSTEP_TORCH}/lib/lib${name}.so" IMPORTED_SONAME "lib${name}.so")
endfunction()

function(_lockstep_import_cpu)
  add_library(lockstep::torch_headers INTERFACE IMPORTED GLOBAL)
  target_include_directories(lockstep::torch_headers SYSTEM INTERFACE
    "${LOCKSTEP_TORCH}/include" "${LOCKSTEP_TORCH}/include/torch/csrc/api/include")
  # Without these two, c10d's headers are empty.
  target_compile_definitions(lockstep::torch_headers INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  _lockstep_import(c10)
  _lockstep_import(torch_cpu)
  # ATen's threads are OpenMP's: torch's own copy where it ships one, since two would mean two sets of threads.
  file(GLOB openmp "${LOCKSTEP_TORCH}/lib/libgomp*.so*")
  list(APPEND openmp gomp)
  list(GET openmp 0 openmp)
  target_link_libraries(lockstep::torch_cpu INTERFACE lockstep::torch_headers lockstep::c10 ${openmp})
  # libtorch_cpu of a CUDA wheel names symbols of libraries that a CPU program never touches.
  target_link_options(lockstep::torch_cpu INTERFACE -Wl,--allow-shlib-undefined)
endfunction()

function(_lockstep_import_cuda)
  _lockstep_check_cuda_major()
  _lockstep_import(c10_cuda)
  add_library(lockstep::torch_cuda INTERFACE IMPORTED GLOBAL)
  target_include_directories(lockstep::torch_cuda SYSTEM INTERFACE "${LOCKSTEP_NCCL_INCLUDE}")
  target_compile_definitions(lockstep::torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_libraries(lockstep::torch_cuda INTERFACE lockstep::torch_cpu lockstep::c10_cuda CUDA::cudart)
  # Its kernels register themselves when it loads, so it stays linked even if none of its symbols is named.
  target_link_options(lockstep::torch_cuda INTERFACE
    "LINKER:--push-state,--no-as-needed,${LOCKSTEP_TORCH}/lib/libtorch_cuda.so,--pop-state")
  # The CUDA runtime that came with a wheel is found before the toolkit's, which may be older.
  if(IS_DIRECTORY "${LOCKSTEP_TORCH}/../nvidia/cu13/lib")
    target_link_options(lockstep::torch_cuda INTERFACE "LINKER:-rpath,${LOCKSTEP_TORCH}/../nvidia/cu13/lib")
  endif()
endfunction()

macro(lockstep_import_torch)
  cmake_parse_arguments(_torch "" "FROM;BELOW;CUDA" "HINTS" ${ARGN})
  _lockstep_choose_torch(${_torch_FROM} ${_torch_BELOW} "${_torch_CUDA}" ${_torch_HINTS})
  _lockstep_torch_version("${LOCKSTEP_TORCH}" LOCKSTEP_TORCH_VERSION)
  message(STATUS "LibTorch ${LOCKSTEP_TORCH_VERSION} in ${LOCKSTEP_TORCH}")
  set(LOCKSTEP_TORCH_INCLUDE "${LOCKSTEP_TORCH}/include")
  _lockstep_import_cpu()
  if(_torch_CUDA)
    include("${_lockstep_cmake_dir}/nccl.cmake")
    _lockstep_import_cuda()
  endif()
endmacro()
