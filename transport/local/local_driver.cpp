// The smallest driver. Read it before you write another one.
#include <millrace/transport/local/local_driver.hpp>
#include <millrace/transport/memory/arena.hpp>

namespace millrace::transport {

namespace {

class local_driver : public driver {
public:
  local_driver(std::shared_ptr<mover_pool> movers, const copy_limits& limits)
    : movers_(std::move(movers)), limits_(limits) {}

  std::string_view name() const noexcept override { return "local"; }
  driver_capabilities capabilities() const noexcept override {
    return {.device_memory = true, .maps = true};
  }
  bool reaches(const peer_id& owner) const noexcept override { return owner == this_peer(); }

  void submit(transfer t, completion<transfer_report> done) override {
    auto memory = find_region(t.remote.region, t.remote.key, access_for(t.dir), memory_reach::any);
    if (!memory)
      return done(fail(memory.error()));
    if (auto bad = check_ops(t.ops, memory->size_bytes()); !bad.ok())
      return done(fail(bad));
    copy_job job{
      .dir = t.dir,
      .memory = *memory,
      .ops = std::move(t.ops),
      .digests = t.digests,
      .write_back = t.write_back,
      .hold = std::move(t.hold),
      .abandoned = nullptr,
      .prepare = {}};
    if (!memory->devices().empty())
      job.prepare = [memory = *memory](std::byte* local, std::uint64_t length) {
        if (auto place = find_arena(local, length))
          for (auto& device : memory.devices())
            place->in->pin_for(*device);
        return status{};
      };
    run_copy_job(
      *movers_, limits_, std::move(job), [done = std::move(done)](result<copied> outcome) {
        if (!outcome)
          return done(fail(outcome.error()));
        done(transfer_report{std::move(outcome->digests), "local", outcome->written_back});
      });
  }

  void map(const bulk_handle& remote, access_mode how, completion<mapped_region> done) override {
    done(find_mappable(remote.region, remote.key, how).map([how](auto found) {
      auto* data = found.data();
      return mapped_region{
        data, found.size_bytes, std::move(found.place.in),
        how == access_mode::write ? data : nullptr};
    }));
  }

private:
  std::shared_ptr<mover_pool> movers_;
  copy_limits limits_;
};

} // namespace

std::shared_ptr<driver> make_local_driver(const driver_deps& deps) {
  return std::make_shared<local_driver>(deps.movers, deps.limits);
}

} // namespace millrace::transport
