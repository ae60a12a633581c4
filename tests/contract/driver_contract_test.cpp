// Runs the contract with every driver: `local` with memory of this process, `shm` and `verbs` with
// memory of a child; also with device memory.
#include "verbs_rig.hpp"

#include <map>

using namespace millrace;
using namespace millrace::testing;

namespace {

class local_rig : public driver_rig {
public:
  explicit local_rig(bool on_device = false)
    : loop_(io_loop::start({}).value()), fabric_(fabric_of(loop_, {"local"})) {
    if (on_device)
      device_ = std::make_unique<fake_device>(fake_device_bytes);
    memory_ =
      fabric_->make_memory({.name = "test", .size_bytes = rig_arena_bytes}, staging_mode::pinned)
        .value();
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
  bool kill_owner() override { return false; }

private:
  std::unique_ptr<fake_device> device_;
  std::shared_ptr<io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<memory_source> memory_;
  std::map<std::uint64_t, std::unique_ptr<exposed_matrix>> owned_;
};

using words = std::vector<std::string>;

const bool registered[] = {
  add_driver_contract("local", [] { return std::make_unique<local_rig>(); }),
  add_driver_contract("local_device", [] { return std::make_unique<local_rig>(true); }),
  add_driver_contract("shm", [] { return std::make_unique<shm_rig>(); }),
  add_driver_contract(
    "shm_device",
    [] {
      return std::make_unique<process_rig>(words{"shm"}, words{"shm", "device"});
    }),
  // Only where a test names the RDMA devices.
  !verbs_rig::configured() ||
    add_driver_contract("verbs", [] { return std::make_unique<verbs_rig>(); }),
  !verbs_rig::configured() ||
    add_driver_contract("verbs_staged", [] { return std::make_unique<verbs_rig>(true); }),
  !verbs_rig::configured() ||
    add_driver_contract("verbs_rdma_cm", [] { return std::make_unique<verbs_rig>(false, true); }),
};

} // namespace
