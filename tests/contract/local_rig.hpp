// A driver rig in one process. Used by the contract of drivers that reach their own process.
#pragma once

#include "driver_contract.hpp"
#include "rig_options.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/tests/support/fake_device.hpp>

#include <map>

namespace millrace::testing {

class local_rig : public driver_rig {
public:
  explicit local_rig(
    const std::string& driver, bool on_device = false, transport::driver_capabilities able = {})
    : able_(able), loop_(net::io_loop::start({}).value()), fabric_(fabric_of(loop_, {driver})) {
    if (on_device)
      device_ = std::make_unique<fake_device>(fake_device_bytes);
    memory_ = fabric_->make_memory({.name = "test", .size_bytes = rig_arena_bytes}).value();
  }
  ~local_rig() override { loop_->stop(); }

  transport::fabric& fabric() override { return *fabric_; }
  memory_source& memory() override { return *memory_; }
  bulk_handle expose(const matrix_shape& shape, access_mode how, std::uint64_t salt) override {
    auto m = std::make_unique<exposed_matrix>(shape, how, salt, device_.get());
    auto handle = m->handle();
    owned_[handle.region] = std::move(m);
    return handle;
  }
  void withdraw(const bulk_handle& handle) override { owned_[handle.region]->withdraw(); }
  std::uint64_t content(const bulk_handle& handle) override {
    auto bytes = owned_[handle.region]->dense();
    return digest(bytes.data(), bytes.size());
  }
  void refill(const bulk_handle& handle, std::uint64_t salt) override {
    owned_[handle.region]->fill(salt);
  }
  transport::driver_capabilities capabilities() const override { return able_; }
  bool kill_owner() override { return false; }

private:
  const transport::driver_capabilities able_;
  std::unique_ptr<fake_device> device_;
  std::shared_ptr<net::io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<memory_source> memory_;
  std::map<std::uint64_t, std::unique_ptr<exposed_matrix>> owned_;
};

} // namespace millrace::testing
