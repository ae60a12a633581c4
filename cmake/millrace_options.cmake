# Compiler settings, and the functions with which rooms and tests are declared. Variables that are set here hold for this
# project alone; what compilers and linkers are told stands in millrace_flags.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# Programs are compiled like libraries, so that both can use one precompiled header.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
  find_program(CCACHE_PROGRAM ccache)
  # A linker that takes a quarter of the time of the usual one, where it is installed.
  find_program(LLD_PROGRAM ld.lld)
endif()
if(CCACHE_PROGRAM)
  # What ccache needs to be told before it keeps anything that used a precompiled header; messages may be in any language.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros,locale "${CCACHE_PROGRAM}")
endif()

# millrace_flags: for everything; millrace_test_flags: for the sources of tests.
foreach(flags millrace_flags millrace_test_flags)
  add_library(${flags} INTERFACE)
  target_compile_options(${flags} INTERFACE -Wall -Wextra $<$<BOOL:${PROJECT_IS_TOP_LEVEL}>:-Werror>
    # The members of a unit are included: what GCC says of unnamed namespaces in headers is not meant for them.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${MILLRACE_UNITY}>>:-Wno-subobject-linkage>
    # GCC collects its garbage after 128 MiB: with more, it takes four fifths of the time for the actors' units.
    $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds>
    $<$<CXX_COMPILER_ID:Clang>:-Wno-unused-lambda-capture>
    # Clang writes into a precompiled header when its sources were changed, so another clone would find none in the cache.
    "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<BOOL:${CCACHE_PROGRAM}>>:SHELL:-Xclang -fno-pch-timestamp>")
  if(LLD_PROGRAM)
    target_link_options(${flags} INTERFACE -fuse-ld=lld)
  endif()
  if(MILLRACE_KILL_POINTS)
    target_compile_definitions(${flags} INTERFACE MILLRACE_KILL_POINTS)
  endif()
endforeach()
if(MILLRACE_SANITIZE STREQUAL "address")
  # Debian's CAF is not instrumented and passes null where its own code allows it. Tests themselves are only checked for
  # addresses, not optimised, and have no line numbers: together more than half of their compilation.
  target_compile_options(millrace_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize=null,vptr -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer $<$<CXX_COMPILER_ID:Clang>:-fsanitize=fuzzer-no-link>)
  target_compile_options(millrace_test_flags INTERFACE -fsanitize=address -fno-omit-frame-pointer -O0 -g0)
  foreach(flags millrace_flags millrace_test_flags)
    target_link_options(${flags} INTERFACE -fsanitize=address,undefined)
  endforeach()
elseif(MILLRACE_SANITIZE STREQUAL "thread")
  foreach(flags millrace_flags millrace_test_flags)
    target_compile_options(${flags} INTERFACE -fsanitize=thread -fno-omit-frame-pointer
      $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    target_link_options(${flags} INTERFACE -fsanitize=thread)
  endforeach()
endif()

# millrace_room(NAME [EXCEPT REGEX] PUBLIC ... PRIVATE ...): the library millrace_NAME of all sources in this folder
# and those below it, so that a new file or a new kind needs no line here. EXCEPT: paths that are left out.
function(millrace_room name)
  cmake_parse_arguments(ARG "" "EXCEPT" "PUBLIC;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" *.cpp)
  if(ARG_EXCEPT)
    list(FILTER sources EXCLUDE REGEX "${ARG_EXCEPT}")
  endif()
  add_library(millrace_${name} STATIC ${sources})
  add_library(millrace::${name} ALIAS millrace_${name})
  set_target_properties(millrace_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(millrace_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>")
  target_link_libraries(millrace_${name} PUBLIC ${ARG_PUBLIC}
    PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:millrace_flags>)
  target_compile_features(millrace_${name} PUBLIC cxx_std_20)
  millrace_precompile(millrace_${name})
endfunction()

# millrace_precompile(TARGET [HEADER...]): precompiles the headers that most sources include, with HEADER... those of this
# target, too; and compiles its sources in units of MILLRACE_UNITY.
function(millrace_precompile target)
  if(target STREQUAL "millrace_core" OR ARGN)
    target_precompile_headers(${target} PRIVATE <millrace/cmake/precompiled.hpp> ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM millrace_core)
  endif()
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(MILLRACE_UNITY AND count GREATER 1)
    millrace_unite(${target} ${sources})
  endif()
endfunction()

# millrace_unite(TARGET SOURCE...): sources of a folder become units that share headers and templates. The lists of kinds
# stay alone, because tests/toys puts others in their place.
function(millrace_unite target)
  set_source_files_properties(builtin.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  foreach(source IN LISTS ARGN)
    get_filename_component(folder "${source}" DIRECTORY)
    math(EXPR part "0${members_${folder}}")
    math(EXPR members_${folder} "${part} + 1")
    math(EXPR part "${part} / ${MILLRACE_UNITY}")
    string(MAKE_C_IDENTIFIER "${folder}_${part}" group)
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${group}")
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# millrace_c_program(NAME SOURCE...): a program in C11 that sees millrace.h and libmillrace.so alone. With sanitizers the
# C++ compiler links it, which has instrumented the library.
function(millrace_c_program name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE millrace::shared)
  target_compile_options(${name} PRIVATE -Wall -Wextra -pedantic -Werror)
  set_target_properties(${name} PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  if(MILLRACE_SANITIZE)
    set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    target_link_options(${name} PRIVATE $<TARGET_PROPERTY:millrace_flags,INTERFACE_LINK_OPTIONS>)
  endif()
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
set(millrace_test_labels fast crash system install tsan lab lab-long sim-long)
if(MILLRACE_TESTS)
  foreach(label IN LISTS millrace_test_labels)
    add_custom_target(tests_${label})
  endforeach()
endif()

# Suppressions and settings of the sanitizers, so that `ctest` alone finds them too.
set(millrace_test_environment
  "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:second_deadlock_stack=1")

# millrace_add_test(NAME PROGRAM LABELS ... COMMAND ... TIMEOUT s DEPENDS targets): a CTest test.
# Exit status 77 means skipped; lines `skipped: WHAT: WHY` in the output are reported at the end.
# Tests labelled system start many processes, so no two of them run at a time.
function(millrace_add_test name program)
  cmake_parse_arguments(ARG "" "TIMEOUT" "LABELS;COMMAND;DEPENDS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(MILLRACE_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  # What may take longest starts first.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT}
    SKIP_RETURN_CODE 77)
  if(MILLRACE_SANITIZE)
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${millrace_test_environment}")
  endif()
  foreach(label IN LISTS ARG_LABELS)
    if(label IN_LIST millrace_test_labels)
      add_dependencies(tests_${label} ${program} ${ARG_DEPENDS})
    endif()
    if(label STREQUAL "system")
      set_tests_properties(${name} PROPERTIES RESOURCE_LOCK processes)
    endif()
  endforeach()
endfunction()

# millrace_test(NAME LABELS ... SOURCES x_test.cpp ... LIBS ... DEPENDS ... [TIMEOUT s] [DEFINES ...] [ALONE]): one entry
# of CTest, the tests of these files. The entries of a folder share the program test_FOLDER: their sources, libraries
# and definitions add up. ALONE: a program test_NAME of its own. DEPENDS names the programs that it starts.
function(millrace_test name)
  cmake_parse_arguments(ARG "ALONE" "TIMEOUT" "LABELS;SOURCES;LIBS;DEPENDS;DEFINES" ${ARGN})
  if(MILLRACE_SANITIZE STREQUAL "thread" AND "fast" IN_LIST ARG_LABELS AND NOT "tsan" IN_LIST ARG_LABELS)
    return() # its sources would double this build
  endif()
  get_filename_component(folder "${CMAKE_CURRENT_SOURCE_DIR}" NAME)
  set(program test_${folder})
  if(ARG_ALONE)
    set(program test_${name})
  endif()
  set(files ${ARG_SOURCES})
  list(FILTER files INCLUDE REGEX "_test\\.cpp$")
  millrace_test_program(${program} SOURCES ${ARG_SOURCES} LIBS ${ARG_LIBS} DEFINES ${ARG_DEFINES})
  millrace_add_test(${name} ${program} COMMAND ${program} -- ${files} LABELS ${ARG_LABELS}
    TIMEOUT ${ARG_TIMEOUT} DEPENDS ${ARG_DEPENDS})
endfunction()

# millrace_test_program(PROGRAM SOURCES ... LIBS ... DEFINES ...): adds to a Boost.Test program, or begins it.
function(millrace_test_program program)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;DEFINES" ${ARGN})
  if(NOT TARGET ${program})
    add_executable(${program})
    target_link_libraries(${program} PRIVATE millrace_test_support Boost::unit_test_framework millrace_test_flags)
    target_precompile_headers(${program} REUSE_FROM millrace_test_support)
  endif()
  target_sources(${program} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_LIBS})
  target_compile_definitions(${program} PRIVATE ${ARG_DEFINES})
endfunction()

# millrace_add_kind(ROOM HEADER ANCHOR LINE): writes ROOM_builtin.cpp to the current binary directory: ROOM's builtin.cpp
# with the header included, and LINE behind the line ANCHOR. A program that compiles it has one kind of driver or bucket more.
function(millrace_add_kind room header anchor line)
  set(original "${PROJECT_SOURCE_DIR}/${room}/builtin.cpp")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${original}")
  file(READ "${original}" text)
  set(own_header "#include <millrace/${room}/builtin.hpp>")
  foreach(needed IN ITEMS "${anchor}" "${own_header}")
    string(FIND "${text}" "${needed}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${original} has no line ${needed}, beside which a kind's line goes")
    endif()
  endforeach()
  string(REPLACE "${anchor}" "${anchor}\n    ${line}" text "${text}")
  string(REPLACE "${own_header}" "${own_header}\n#include <millrace/${header}>" text "${text}")
  file(CONFIGURE OUTPUT ${room}_builtin.cpp CONTENT "${text}" @ONLY)
endfunction()
