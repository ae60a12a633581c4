# Compiler settings and the two helpers with which every room and every test is declared.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()

add_library(millrace_flags INTERFACE)
target_compile_options(millrace_flags INTERFACE -Wall -Wextra -Werror
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict>)
if(MILLRACE_SANITIZE STREQUAL "address")
  # Debian's CAF is not instrumented and passes null where its own code allows it.
  target_compile_options(millrace_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize=null,vptr -fno-omit-frame-pointer)
  target_link_options(millrace_flags INTERFACE -fsanitize=address,undefined)
elseif(MILLRACE_SANITIZE STREQUAL "thread")
  target_compile_options(millrace_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  target_link_options(millrace_flags INTERFACE -fsanitize=thread)
elseif(MILLRACE_SANITIZE STREQUAL "fuzzer")
  target_compile_options(millrace_flags INTERFACE
    -fsanitize=fuzzer-no-link,address -fno-omit-frame-pointer)
  target_link_options(millrace_flags INTERFACE -fsanitize=address)
endif()

# millrace_room(NAME SOURCES ... PUBLIC ... PRIVATE ...): the library millrace_NAME.
function(millrace_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(millrace_${name} STATIC ${ARG_SOURCES})
  add_library(millrace::${name} ALIAS millrace_${name})
  target_include_directories(millrace_${name} PUBLIC "${CMAKE_BINARY_DIR}/include")
  target_link_libraries(millrace_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} millrace_flags)
endfunction()

# millrace_test(NAME LABELS ... SOURCES ... LIBS ...): a Boost.Test program that CTest runs.
function(millrace_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;SOURCES;LIBS;ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(test_${name} ${ARG_SOURCES} "${PROJECT_SOURCE_DIR}/tests/support/main.cpp")
  target_link_libraries(test_${name} PRIVATE ${ARG_LIBS} Boost::unit_test_framework millrace_flags)
  target_compile_definitions(test_${name} PRIVATE BOOST_TEST_DYN_LINK)
  add_test(NAME ${name} COMMAND test_${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
