// The smallest driver: read it first.
#include <millrace/transport/local/local_driver.hpp>

namespace millrace::transport {

namespace {

class local_driver : public driver {
public:
  local_driver(std::shared_ptr<mover_pool> movers, const copy_limits& limits)
    : movers_(std::move(movers)), limits_(limits) {}

  std::string_view name() const noexcept override { return "local"; }
  driver_capabilities capabilities() const noexcept override { return {.same_process = true}; }
  bool reaches(const peer_id& owner) const noexcept override { return owner == this_peer(); }

  void submit(transfer t, completion<transfer_report> done) override {
    auto how = t.dir == direction::read ? access_mode::read : access_mode::write;
    auto memory = find_region(t.remote.region, t.remote.key, how);
    if (!memory)
      return done(fail(memory.error()));
    if (auto bad = check_ops(t.ops, memory->size_bytes()); !bad.ok())
      return done(fail(bad));
    copy_job job{t.dir, *memory, std::move(t.ops), t.digests, std::move(t.hold), nullptr};
    run_copy_job(
      *movers_, limits_, std::move(job),
      [done = std::move(done)](result<std::vector<std::uint64_t>> digests) {
        if (!digests)
          return done(fail(digests.error()));
        done(transfer_report{std::move(*digests), "local"});
      });
  }

private:
  std::shared_ptr<mover_pool> movers_;
  copy_limits limits_;
};

} // namespace

std::shared_ptr<driver> make_local_driver(
  std::shared_ptr<mover_pool> movers, const copy_limits& limits) {
  return std::make_shared<local_driver>(std::move(movers), limits);
}

} // namespace millrace::transport
