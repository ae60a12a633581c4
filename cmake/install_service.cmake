# Installs the units of systemd and the configuration of the system's service. Run by `cmake --install` with
# millrace_packaging, the templates; millrace_binary, the build; and millrace_bin, the folder of the program.
cmake_policy(VERSION 3.25)
cmake_path(ABSOLUTE_PATH millrace_bin BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}")
# A prefix of its own has its own etc; what is installed in /usr is configured in /etc.
set(millrace_etc "${CMAKE_INSTALL_PREFIX}/etc")
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
  set(millrace_etc /etc)
endif()

foreach(kind IN ITEMS system user)
  configure_file("${millrace_packaging}/millrace-${kind}.service.in"
    "${millrace_binary}/units/${kind}/millrace.service" @ONLY)
  file(INSTALL "${millrace_binary}/units/${kind}/millrace.service"
    DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/systemd/${kind}")
endforeach()
file(INSTALL "${millrace_packaging}/sysusers.conf"
  DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/sysusers.d" RENAME millrace.conf)
file(INSTALL "${millrace_packaging}/tmpfiles.conf"
  DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/tmpfiles.d" RENAME millrace.conf)
# What an administrator has written stays.
if(NOT EXISTS "$ENV{DESTDIR}${millrace_etc}/millrace/millrace.yaml")
  file(INSTALL "${millrace_packaging}/millrace.yaml" DESTINATION "${millrace_etc}/millrace")
endif()
