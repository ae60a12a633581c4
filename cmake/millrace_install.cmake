# What `cmake --install` puts where. Components: runtime (the command and the service), library (the shared library),
# development (headers, static libraries, CMake and pkg-config files), python (the package for Python), docs (manuals,
# completion, samples).
#
# What names the prefix is written while it installs, so that `--prefix` holds.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/Millrace")

install(TARGETS millrace RUNTIME COMPONENT runtime)

# The C++ interface: the rooms, and Millrace::cpp for all that a program needs of them.
add_library(millrace_cpp INTERFACE)
add_library(millrace::cpp ALIAS millrace_cpp)
set_target_properties(millrace_cpp PROPERTIES EXPORT_NAME cpp)
target_link_libraries(millrace_cpp INTERFACE millrace_runtime)
install(TARGETS millrace_core millrace_config millrace_net millrace_transport millrace_storage millrace_actors
    millrace_runtime millrace_cpp
  EXPORT Millrace_cpp
  ARCHIVE COMPONENT development
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT Millrace_cpp NAMESPACE Millrace:: DESTINATION "${package_dir}" COMPONENT development)
install(CODE "set(millrace_source [[${PROJECT_SOURCE_DIR}]])
    set(millrace_include [[${CMAKE_INSTALL_INCLUDEDIR}]])"
  COMPONENT development)
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_headers.cmake" COMPONENT development)
install(FILES "${PROJECT_BINARY_DIR}/generated/millrace/version.hpp"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/millrace" COMPONENT development)

# The C interface.
if(TARGET millrace_shared)
  set_target_properties(millrace_shared PROPERTIES EXPORT_NAME c)
  install(TARGETS millrace_shared EXPORT Millrace_c
    LIBRARY COMPONENT library NAMELINK_COMPONENT development
    FILE_SET HEADERS COMPONENT development
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT Millrace_c NAMESPACE Millrace:: DESTINATION "${package_dir}" COMPONENT development)
  # Paths that lead from the file's place to the prefix.
  file(RELATIVE_PATH to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
  configure_file(cmake/millrace.pc.in "${PROJECT_BINARY_DIR}/millrace.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/millrace.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)
endif()

if(TARGET millrace_python)
  install(CODE "set(millrace_python_module [[$<TARGET_FILE:millrace_python>]])
      set(millrace_python_sources [[${PROJECT_SOURCE_DIR}/bindings/python/millrace]])
      set(millrace_python_version [[${MILLRACE_PYTHON_VERSION}]])
      set(millrace_lib [[${CMAKE_INSTALL_LIBDIR}]])"
    COMPONENT python)
  install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_python.cmake" COMPONENT python)
endif()

configure_package_config_file(cmake/MillraceConfig.cmake.in "${PROJECT_BINARY_DIR}/MillraceConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a minor version may change the interface in C++.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/MillraceConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/MillraceConfig.cmake" "${PROJECT_BINARY_DIR}/MillraceConfigVersion.cmake"
    cmake/FindCAF.cmake cmake/millrace_dependencies.cmake
  DESTINATION "${package_dir}" COMPONENT development)

# The service.
install(CODE "set(millrace_packaging [[${PROJECT_SOURCE_DIR}/packaging]])
    set(millrace_binary [[${PROJECT_BINARY_DIR}]])
    set(millrace_bin [[${CMAKE_INSTALL_BINDIR}]])"
  COMPONENT runtime)
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_service.cmake" COMPONENT runtime)

# What the program tells of itself: see tools/CMakeLists.txt.
set(manual "${PROJECT_BINARY_DIR}/manual")
install(DIRECTORY "${manual}/man1" "${manual}/man5" DESTINATION "${CMAKE_INSTALL_MANDIR}" COMPONENT docs)
install(FILES "${manual}/completion/millrace"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT docs)
install(CODE "set(millrace_completion [[${manual}/completion/_millrace]])
    set(millrace_zsh [[${CMAKE_INSTALL_DATADIR}/zsh]])"
  COMPONENT docs)
install(SCRIPT "${PROJECT_SOURCE_DIR}/cmake/install_completion.cmake" COMPONENT docs)
install(FILES "${manual}/millrace.yaml" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples" COMPONENT docs)
