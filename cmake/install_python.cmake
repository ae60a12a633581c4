# Installs the package for Python. Run by `cmake --install` with millrace_python_module, the compiled module;
# millrace_python_sources, the folder of the others; millrace_python_version, such as 3.11; and millrace_lib, the folder of
# libraries below the prefix.
cmake_policy(VERSION 3.25)
# Debian's packages are for each version of Python 3; what an administrator installs is for one.
set(place "lib/python${millrace_python_version}/dist-packages")
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
  set(place lib/python3/dist-packages)
endif()
set(folder "${CMAKE_INSTALL_PREFIX}/${place}")
file(INSTALL "${millrace_python_sources}" DESTINATION "${folder}"
  PATTERN __pycache__ EXCLUDE)
file(INSTALL "${millrace_python_module}" DESTINATION "${folder}/millrace" TYPE SHARED_LIBRARY)
get_filename_component(module "${millrace_python_module}" NAME)
set(installed "$ENV{DESTDIR}${folder}/millrace/${module}")
# The loader looks into /usr/lib by itself.
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
  file(RPATH_REMOVE FILE "${installed}")
else()
  file(RELATIVE_PATH to_libraries "/${place}/millrace" "/${millrace_lib}")
  file(RPATH_SET FILE "${installed}" NEW_RPATH "\$ORIGIN/${to_libraries}")
endif()
