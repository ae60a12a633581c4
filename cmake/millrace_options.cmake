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
  $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds>)
if(MILLRACE_KILL_POINTS)
  target_compile_definitions(millrace_flags INTERFACE MILLRACE_KILL_POINTS)
endif()
if(MILLRACE_SANITIZE STREQUAL "address")
  # Debian's CAF is not instrumented and passes null where its own code allows it.
  target_compile_options(millrace_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize=null,vptr -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
  target_link_options(millrace_flags INTERFACE -fsanitize=address,undefined)
elseif(MILLRACE_SANITIZE STREQUAL "thread")
  target_compile_options(millrace_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  target_link_options(millrace_flags INTERFACE -fsanitize=thread)
elseif(MILLRACE_SANITIZE STREQUAL "fuzzer")
  target_compile_options(millrace_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize=null,vptr -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(millrace_flags INTERFACE -fsanitize=address,undefined)
endif()

# millrace_room(NAME SOURCES ... PUBLIC ... PRIVATE ...): the library millrace_NAME.
function(millrace_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(millrace_${name} STATIC ${ARG_SOURCES})
  add_library(millrace::${name} ALIAS millrace_${name})
  target_include_directories(millrace_${name} PUBLIC "${CMAKE_BINARY_DIR}/include")
  target_link_libraries(millrace_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE} millrace_flags)
endfunction()

# millrace_gather(TARGET DIRECTORY): makes TARGET build whatever the directory and those below declare.
function(millrace_gather target directory)
  get_property(declared DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(one IN LISTS declared)
    get_target_property(type ${one} TYPE)
    if(type MATCHES "EXECUTABLE|LIBRARY" AND NOT type STREQUAL "INTERFACE_LIBRARY")
      add_dependencies(${target} ${one})
    endif()
  endforeach()
  get_property(below DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(one IN LISTS below)
    millrace_gather(${target} "${one}")
  endforeach()
endfunction()

# One target per label builds the programs of its tests and nothing else.
set(millrace_test_labels fast crash system tsan lab)
foreach(label IN LISTS millrace_test_labels)
  add_custom_target(tests_${label})
endforeach()

# Suppressions and settings of the sanitizers, so that `ctest` alone finds them too.
set(millrace_test_environment
  "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:second_deadlock_stack=1")

# millrace_add_test(NAME PROGRAM LABELS ... COMMAND ... TIMEOUT s DEPENDS targets): a CTest test.
# Exit status 77 means skipped; a line `skipped: WHAT: WHY` in the output is reported at the end.
# Tests labelled crash, system or lab start processes or guests and run one at a time.
function(millrace_add_test name program)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;COMMAND;DEPENDS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(MILLRACE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    SKIP_RETURN_CODE 77)
  if(MILLRACE_SANITIZE)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${millrace_test_environment}")
  endif()
  foreach(label IN LISTS ARG_LABELS)
    if(label IN_LIST millrace_test_labels)
      add_dependencies(tests_${label} ${program} ${ARG_DEPENDS})
    endif()
    if(label MATCHES "^(crash|system|lab)$")
      set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    endif()
  endforeach()
endfunction()

# millrace_test(NAME LABELS ... SOURCES ... LIBS ... ARGS ... DEPENDS ...): a Boost.Test program that
# CTest runs. DEPENDS names the programs that it starts.
function(millrace_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;SOURCES;LIBS;ARGS;DEPENDS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES} "${PROJECT_SOURCE_DIR}/tests/support/main.cpp")
  target_link_libraries(test_${name} PRIVATE ${ARG_LIBS} Boost::unit_test_framework millrace_flags)
  target_compile_definitions(test_${name} PRIVATE BOOST_TEST_DYN_LINK)
  millrace_add_test(${name} test_${name} COMMAND test_${name} ${ARG_ARGS} LABELS ${ARG_LABELS}
    TIMEOUT ${ARG_TIMEOUT} DEPENDS ${ARG_DEPENDS})
endfunction()
