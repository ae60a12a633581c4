# Installs the completion for zsh. Run by `cmake --install` with millrace_completion, the file; and millrace_zsh, the folder
# of zsh below the prefix.
cmake_policy(VERSION 3.25)
# zsh looks for those of packages in one place, and for those of the administrator in another.
set(place site-functions)
if(CMAKE_INSTALL_PREFIX MATCHES "^/usr/?$")
  set(place vendor-completions)
endif()
file(INSTALL "${millrace_completion}" DESTINATION "${CMAKE_INSTALL_PREFIX}/${millrace_zsh}/${place}")
