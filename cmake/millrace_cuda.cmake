# Sets MILLRACE_HAS_CUDA and MILLRACE_CUDA_INCLUDE. The headers of the toolkit are all that a build needs: the driver's
# library is looked up at run time.
set(MILLRACE_HAS_CUDA OFF)
if(NOT MILLRACE_CUDA STREQUAL "OFF")
  find_path(MILLRACE_CUDA_INCLUDE cuda.h
    HINTS ENV CUDA_HOME ENV CUDA_PATH
    PATHS /usr/local/cuda
    PATH_SUFFIXES include)
  mark_as_advanced(MILLRACE_CUDA_INCLUDE)
  set(missing "cuda.h was not found; set CUDA_HOME")
  if(MILLRACE_CUDA_INCLUDE)
    file(STRINGS "${MILLRACE_CUDA_INCLUDE}/cuda.h" version REGEX "^#define CUDA_VERSION [0-9]+")
    string(REGEX REPLACE "[^0-9]" "" version "${version}")
    set(missing "${MILLRACE_CUDA_INCLUDE}/cuda.h is older than CUDA 11.7, the first with dma-buf")
    if(version GREATER_EQUAL 11070)
      set(MILLRACE_HAS_CUDA ON)
      message(STATUS "Memory of NVIDIA GPUs: by ${MILLRACE_CUDA_INCLUDE}/cuda.h, version ${version}")
    endif()
  endif()
  if(MILLRACE_CUDA STREQUAL "ON" AND NOT MILLRACE_HAS_CUDA)
    message(FATAL_ERROR "MILLRACE_CUDA=ON: ${missing}")
  endif()
endif()
