# SPDX-License-Identifier: Apache-2.0
# Installs the library, its public headers and a package for find_package(lockstep). The command installs itself.

include(CMakePackageConfigHelpers)
set(_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/lockstep")
# LibTorch promises no stable interface between minor releases, so users need the one this build has seen.
string(REGEX MATCH "^([0-9]+)\\.([0-9]+)" LOCKSTEP_TORCH_MINOR "${LOCKSTEP_TORCH_VERSION}")
math(EXPR _next "${CMAKE_MATCH_2} + 1")
set(LOCKSTEP_TORCH_NEXT "${CMAKE_MATCH_1}.${_next}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/lockstep-config.cmake.in"
  "${PROJECT_BINARY_DIR}/lockstep-config.cmake" INSTALL_DESTINATION "${_package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/lockstep-config-version.cmake" COMPATIBILITY SameMinorVersion)

install(TARGETS lockstep EXPORT lockstep-targets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/lockstep" TYPE INCLUDE)
install(EXPORT lockstep-targets NAMESPACE lockstep:: DESTINATION "${_package_dir}")
install(FILES
  "${PROJECT_BINARY_DIR}/lockstep-config.cmake" "${PROJECT_BINARY_DIR}/lockstep-config-version.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/libtorch.cmake" "${PROJECT_SOURCE_DIR}/cmake/nccl.cmake"
  DESTINATION "${_package_dir}")
