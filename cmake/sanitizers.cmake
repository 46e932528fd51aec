# SPDX-License-Identifier: Apache-2.0
# LOCKSTEP_SANITIZE instruments the project's own targets. LibTorch stays as it is; what ThreadSanitizer cannot follow
# in it, and what it leaks itself, is suppressed in tests/support/{tsan,lsan}.supp, each line with its reason.

set(_sanitizers address undefined thread)
if(LOCKSTEP_SANITIZE AND NOT LOCKSTEP_SANITIZE IN_LIST _sanitizers)
  message(FATAL_ERROR "LOCKSTEP_SANITIZE is '${LOCKSTEP_SANITIZE}'; expected one of ${_sanitizers}, or nothing.")
endif()

function(lockstep_sanitize target)
  if(LOCKSTEP_SANITIZE)
    set(flags -O1 -fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
    target_link_options(${target} PUBLIC -fsanitize=${LOCKSTEP_SANITIZE})
  endif()
endfunction()

# What a test's environment must hold under each sanitizer.
set(LOCKSTEP_SANITIZE_ENVIRONMENT "")
if(LOCKSTEP_SANITIZE STREQUAL address)
  set(LOCKSTEP_SANITIZE_ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
    "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0")
elseif(LOCKSTEP_SANITIZE STREQUAL undefined)
  set(LOCKSTEP_SANITIZE_ENVIRONMENT "UBSAN_OPTIONS=print_stacktrace=1")
elseif(LOCKSTEP_SANITIZE STREQUAL thread)
  set(LOCKSTEP_SANITIZE_ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp:print_suppressions=0:second_deadlock_stack=1")
endif()
