// What every driver promises, as one suite. Registered once for each driver.
#pragma once

#include <millrace/tests/support/exposed_matrix.hpp>

#include <functional>
#include <memory>
#include <string>

namespace millrace::testing {

/// A driver, and a process (this one or another) that owns the memory it reaches.
class driver_rig {
public:
  virtual ~driver_rig() = default;

  virtual transport::fabric& fabric() = 0;
  virtual memory_source& memory() = 0;

  /// The owner exposes a matrix, filled with the pattern if it is to be read.
  virtual bulk_handle expose(const matrix_shape& shape, access_mode how, std::uint64_t salt) = 0;
  virtual void withdraw(const bulk_handle& handle) = 0;
  /// Digest of the matrix as it is now, row after row.
  virtual std::uint64_t content(const bulk_handle& handle) = 0;

  /// What the driver can do.
  virtual transport::driver_capabilities capabilities() const { return {}; }
  /// The process that maps our adopted files to copy, or 0 if there is no other.
  virtual pid_t owner_pid() const { return 0; }
  /// Keeps the owner from doing anything more before it is killed. Nothing if it is this process.
  virtual void stop_owner() {}
  /// Ends the owner without warning. False if it is this process.
  virtual bool kill_owner() = 0;
};

/// Adds the suite under a driver's name to this test program.
bool add_driver_contract(
  const std::string& name, std::function<std::unique_ptr<driver_rig>()> make);

} // namespace millrace::testing
