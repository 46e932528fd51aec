# SPDX-License-Identifier: Apache-2.0
# One function gives every target of the project its language level, warnings and visibility. All get the same flags,
# so that programs can share a precompiled header with libraries.

set(_warnings -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Woverloaded-virtual)
if(LOCKSTEP_WERROR)
  list(APPEND _warnings -Werror)
endif()
# Line tables name the line in a stack trace; full type information made each compilation half as long again and
# objects ten times as large. -fpch-preprocess lets ccache see through the precompiled header.
set(LOCKSTEP_CXX_FLAGS -fPIC ${_warnings} -fpch-preprocess -g1)
if(LOCKSTEP_UNITY)
  # g++ takes the unnamed namespace of a source that a unity file includes for a header's.
  list(APPEND LOCKSTEP_CXX_FLAGS -Wno-subobject-linkage)
endif()
# nvcc passes -Xcompiler's list to g++. Its generated code knows nothing of -Wconversion or -Wshadow.
# The standard is named here, since CMake 3.25 leaves CUDA_STANDARD out of nvcc's command line.
set(LOCKSTEP_CUDA_FLAGS -std=c++20 -lineinfo --expt-relaxed-constexpr -Xcompiler=-fPIC,-Wall,-Wextra)
if(LOCKSTEP_WERROR)
  list(APPEND LOCKSTEP_CUDA_FLAGS --Werror=all-warnings)
endif()

function(lockstep_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    CUDA_VISIBILITY_PRESET hidden)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${LOCKSTEP_CXX_FLAGS}>" "$<$<COMPILE_LANGUAGE:CUDA>:${LOCKSTEP_CUDA_FLAGS}>")
  lockstep_sanitize(${target})
endfunction()
