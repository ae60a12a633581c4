// The promises of every driver, as one suite.
// Registered by driver_contract_test.cpp once for each driver.
#pragma once

#include <millrace/tests/support/exposed_matrix.hpp>

#include <functional>
#include <memory>
#include <string>

namespace millrace::testing {

/// A driver, and a process (this one or another) that owns the memory that the driver reaches.
class driver_rig {
public:
  virtual ~driver_rig() = default;

  virtual transport::fabric& fabric() = 0;
  virtual memory_source& memory() = 0;

  /// Exposes a matrix in the owner. If it is to be read, it is filled with the pattern.
  virtual bulk_handle expose(const matrix_shape& shape, access_mode how, std::uint64_t salt) = 0;
  virtual void withdraw(const bulk_handle& handle) = 0;
  /// Fills the matrix with the pattern of another salt.
  virtual void refill(const bulk_handle& handle, std::uint64_t salt) = 0;
  /// Returns the digest of the matrix as it is now, row after row.
  virtual std::uint64_t content(const bulk_handle& handle) = 0;

  /// Says what the suite may ask of the driver, where that is less than everything
  /// (`strided_regions`, `any_file`) or more (`maps`).
  virtual transport::driver_capabilities capabilities() const { return {}; }
  /// Returns the process that maps our adopted files to copy, or 0 if there is no other.
  virtual pid_t owner_pid() const { return 0; }
  /// Stops the owner before it is killed, so that it does nothing more. Does nothing if the owner
  /// is this process.
  virtual void stop_owner() {}
  /// Ends the owner without warning. Returns false if the owner is this process.
  virtual bool kill_owner() = 0;
};

/// Adds the suite `driver_contract_NAME` to this test program, as tests of the calling file.
bool add_driver_contract(
  const std::string& name, std::function<std::unique_ptr<driver_rig>()> make,
  const char* file = __builtin_FILE());

} // namespace millrace::testing
