// Errors of libzip as statuses. Used by the zip input and output.
#pragma once

#include <millrace/core/status.hpp>

#include <zip.h>

#include <string>

namespace millrace::storage::archive {

inline status status_of(const zip_error_t& error, const std::string& doing) {
  if (zip_error_system_type(&error) == ZIP_ET_SYS && error.sys_err != 0)
    return status_from_errno(error.sys_err, doing);
  zip_error_t copy;
  zip_error_init_with_code(&copy, error.zip_err);
  status why{errc::corrupt_data, "{}: {}", doing, zip_error_strerror(&copy)};
  zip_error_fini(&copy);
  return why;
}

} // namespace millrace::storage::archive
