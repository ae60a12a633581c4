// Makes the bytes persistent, then the version visible, in this order. Called by the caller of a
// reservation.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/slot_filling.hpp>

namespace millrace::storage::pmem {

status slot_filling::may_publish(const std::vector<std::uint64_t>& digests) {
  if (auto bad = check_digests(digests); !bad.ok())
    return bad;
  if (auto bad = extra_ ? extra_->may_persist() : status{}; !bad.ok())
    return bad;
  if (auto bad = data_->may_persist(); !bad.ok())
    return bad;
  if (publishing_.exchange(true))
    return {errc::invalid_argument, "published already"};
  return {};
}

void slot_filling::publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) {
  auto outcome = may_publish(digests);
  if (outcome.ok())
    outcome = prepare(std::move(digests));
  if (!outcome.ok())
    return done(fail(within(outcome)));
  MILLRACE_KILL_POINT("pmem.persist.before");
  data_->persist([self = shared_from_this(), done = std::move(done)](status persisted) mutable {
    MILLRACE_KILL_POINT("pmem.persist.after");
    auto outcome = persisted.ok() ? self->finish() : fail(std::move(persisted));
    if (!outcome)
      outcome = fail(self->within(outcome.error()));
    // The slot is released before the caller continues and begins the next step.
    self->let_go();
    self.reset();
    done(std::move(outcome));
  });
}

void slot_filling::let_go() {
  data_.reset();
  extra_.reset();
  lent_.lease.reset();
  ticket_.reset();
}

namespace {

class lent_version final : public pending_version {
public:
  explicit lent_version(std::shared_ptr<slot_filling> f) : filling_(std::move(f)) {}

  std::uint32_t window_count() const noexcept override { return windows_; }
  std::uint64_t window_bytes() const noexcept override { return window_bytes_; }
  void acquire(std::uint32_t index, memory_block staging, completion<window> done) override {
    if (filling_->publishing())
      return done(fail(misused()));
    filling_->data().acquire(index, std::move(staging), std::move(done));
  }
  void commit(std::uint32_t index, completion<void> done) override {
    if (filling_->publishing())
      return done(fail(misused()));
    filling_->data().commit(index, std::move(done));
  }
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
    if (filling_->publishing())
      return done(fail(misused()));
    filling_->publish(std::move(digests), std::move(done));
  }
  void written_back() override {
    if (!filling_->publishing())
      filling_->data().written_back();
  }

  bool complete() const noexcept override { return filling_->complete(); }
  std::uint64_t run() const noexcept override { return filling_->run(); }
  window_space* extra() noexcept override {
    return filling_->publishing() ? nullptr : filling_->extra();
  }

private:
  status misused() const { return filling_->within({errc::invalid_argument, "published already"}); }

  std::shared_ptr<slot_filling> filling_;
  const std::uint32_t windows_ = filling_->data().window_count();
  const std::uint64_t window_bytes_ = filling_->data().window_bytes();
};

} // namespace

std::unique_ptr<pending_version> hand_out(std::shared_ptr<slot_filling> f) {
  return std::make_unique<lent_version>(std::move(f));
}

} // namespace millrace::storage::pmem
