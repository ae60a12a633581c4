# Installs the public headers of the C++ interface: those that programs include, and all that these include. Run by
# `cmake --install` with millrace_source, the tree, and millrace_include, the folder of headers.
cmake_policy(VERSION 3.25)
cmake_path(ABSOLUTE_PATH millrace_include BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")

file(GLOB waiting RELATIVE "${millrace_source}" "${millrace_source}/runtime/client/*.hpp")
list(APPEND waiting runtime/configuration.hpp runtime/node/node.hpp)
set(public "")
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST public OR header STREQUAL "version.hpp") # that one is generated
    continue()
  endif()
  list(APPEND public "${header}")
  file(STRINGS "${millrace_source}/${header}" lines REGEX "^ *# *include <millrace/[^>]+>")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^ *# *include <millrace/([^>]+)>.*" "\\1" included "${line}")
    list(APPEND waiting "${included}")
  endforeach()
endwhile()
foreach(header IN LISTS public)
  cmake_path(GET header PARENT_PATH folder)
  file(INSTALL "${millrace_source}/${header}" DESTINATION "${millrace_include}/millrace/${folder}")
endforeach()
