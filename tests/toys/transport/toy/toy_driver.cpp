// One copy job for each transfer.
#include <millrace/transport/toy/toy_driver.hpp>

#include <atomic>

namespace millrace::transport {

namespace {

class toy_driver : public driver, public std::enable_shared_from_this<toy_driver> {
public:
  toy_driver(const driver_deps& deps, const toy_options& options)
    : movers_(deps.movers), limits_(deps.limits), options_(options) {}

  std::string_view name() const noexcept override { return "toy"; }
  driver_capabilities capabilities() const noexcept override { return {}; }
  bool reaches(const peer_id& owner) const noexcept override { return owner == this_peer(); }

  void submit(transfer t, completion<transfer_report> done) override {
    std::uint64_t bytes = 0;
    for (auto& op : t.ops)
      bytes += op.length;
    if (bytes > options_.transfer_bytes_max)
      return done(fail(errc::unsupported, "the transfer is larger than toy.transfer_max"));
    auto memory = find_region(t.remote.region, t.remote.key, access_for(t.dir));
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
      .hold = t.hold,
      .abandoned = nullptr,
      .prepare = {}};
    run_copy_job(
      *movers_, limits_, std::move(job),
      [self = shared_from_this(), done = std::move(done)](result<copied> outcome) {
        if (!outcome)
          return done(fail(outcome.error()));
        ++self->transfers_;
        done(transfer_report{std::move(outcome->digests), "toy", outcome->written_back});
      });
  }

  std::optional<driver_report> report() const override {
    return driver_report{"toys", {{"transfers", transfers_.load()}}, {}};
  }

private:
  const std::shared_ptr<mover_pool> movers_;
  const copy_limits limits_;
  const toy_options options_;
  std::atomic<std::uint64_t> transfers_ = 0;
};

} // namespace

result<std::shared_ptr<driver>> make_toy_driver(
  const driver_deps& deps, const toy_options& options) {
  return std::make_shared<toy_driver>(deps, options);
}

} // namespace millrace::transport
