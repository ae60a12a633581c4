// Time stands still while actors work; the seed decides what happens next.
#include "fault_world.hpp"

#include "bucket_driving.hpp"

#include <millrace/core/log.hpp>
#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/local/local_driver.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::testing {

using namespace std::chrono_literals;

namespace {

// All bytes move on the calling thread, so that the seed alone decides.
constexpr transport::copy_limits inline_only{
  .inline_bytes_max = ~0ull, .inline_local_bytes_max = ~0ull};

// Peers are memory of this process under their own names.
class peers_in_process : public transport::driver {
public:
  peers_in_process()
    : local_(transport::make_local_driver(
        {.movers = std::make_shared<transport::mover_pool>(1), .limits = inline_only})) {}

  std::string_view name() const noexcept override { return "local"; }
  transport::driver_capabilities capabilities() const noexcept override {
    return local_->capabilities();
  }
  bool reaches(const peer_id&) const noexcept override { return true; }
  void submit(transport::transfer t, completion<transport::transfer_report> done) override {
    t.remote.owner = this_peer();
    local_->submit(std::move(t), std::move(done));
  }
  void map(const bulk_handle& remote, access_mode how, completion<transport::mapped_region> done)
    override {
    local_->map(remote, how, std::move(done));
  }

private:
  std::shared_ptr<transport::driver> local_;
};

std::shared_ptr<transport::driver> all_peers() {
  static auto driver = std::make_shared<peers_in_process>();
  return driver;
}

} // namespace

void demand_excuse(const status& why, const std::string& what) {
  switch (why.code()) {
  case errc::peer_lost:
  case errc::io_error:
  case errc::unsupported:
  case errc::deadline_exceeded:
  case errc::busy:
  case errc::no_space:
  case errc::unavailable:
    return;
  default:
    demand(false, what + " failed with " + why.to_string());
  }
}

layout few_tensors(dice& random) {
  static constexpr std::uint64_t sizes[] = {1, 100, 4000, 10'000, 70'001};
  layout out;
  for (auto left = random.between(1, 4); left > 0; --left)
    out.tensors.push_back(
      {"t" + std::to_string(left),
       dtype::u8,
       {random.percent(3) ? 600'000 : sizes[random.below(std::size(sizes))]}});
  return out;
}

std::vector<std::byte> content(const layout& tensors, std::uint64_t seed) {
  std::vector<std::byte> out(size_bytes(tensors));
  std::uint64_t at = 0;
  for (std::uint32_t i = 0; i < tensors.tensors.size(); ++i) {
    auto length = *size_bytes(tensors.tensors[i]);
    fill(out.data() + at, length, seed, i, 0);
    at += length;
  }
  return out;
}

peer_memory::peer_memory(const peer_id& owner, std::vector<std::byte> bytes, access_mode how)
  : owner_(owner), bytes_(std::make_unique<std::vector<std::byte>>(std::move(bytes))) {
  auto all = tensor_view::dense("all", dtype::u8, {bytes_->size()}, std::span{*bytes_});
  region_ = transport::expose({all}, how).value();
}

bulk_handle peer_memory::handle() const {
  auto h = region_.handle();
  h.owner = owner_;
  return h;
}

void peer_memory::withdraw() {
  region_.withdraw();
  bytes_->clear();
  bytes_->shrink_to_fit();
}

fault_world::fault_world(std::uint64_t seed)
  : random(seed), sched_(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())) {
  system.await_actors_before_shutdown(false);
  auto time = [this] { return now(); };
  auto policy = fault_policy{};
  std::vector<std::shared_ptr<transport::driver>> drivers;
  if (random.percent(50)) {
    // A driver whose bytes may still arrive must not hand its transfer to another driver, unless
    // the peer is gone.
    policy.weight_of(fault::late) = 0;
    second = std::make_shared<faulty_driver>(all_peers(), no_faults(), random.next(), time);
  }
  driver = std::make_shared<faulty_driver>(all_peers(), policy, random.next(), time);
  drivers.push_back(driver);
  if (second)
    drivers.push_back(second);
  transport::fabric_options options;
  options.movers = 1;
  options.limits = inline_only;
  // By the world's clock the first driver is always tried again.
  options.retry_after_ms = 0;
  fabric = transport::fabric::with_drivers(options, std::move(drivers));
}

fault_world::~fault_world() { close(); }

void fault_world::close() {
  open_.clear();
  over_ = true;
  do {
    driver->end_all();
    work_off();
  } while (other_one());
  other = nullptr;
}

peer_id fault_world::new_peer() {
  peer_id id;
  ++ids;
  std::memcpy(id.bytes.data(), &ids, sizeof(ids));
  auto& c = channels_[id] = std::make_shared<fake_channel>(id, "peer " + std::to_string(ids));
  fabric->peer_opened(c);
  return id;
}

// Closes the channel first, as the fabric's owner does. Then no transfer changes its driver.
void fault_world::lose(const peer_id& peer) {
  if (auto c = channels_.extract(peer)) {
    auto before = counts();
    fabric->peer_closed(*c.mapped(), {errc::peer_lost, "the peer is gone"});
    auto after = counts();
    of_lost_.ended += before.ended - after.ended;
    of_lost_.fallbacks += before.fallbacks - after.fallbacks;
  }
  if (second)
    second->lose(peer);
  driver->lose(peer);
}

fault_world::path_counts fault_world::counts() const {
  auto out = of_lost_;
  for (auto& path : fabric->paths()) {
    out.ended += path.transfers + path.failures;
    out.fallbacks += path.fallbacks;
  }
  return out;
}

void fault_world::demand_drivers_rest() const {
  demand(driver->held() == 0, "no transfer is left");
  auto ended = driver->ended() + (second ? second->ended() : 0);
  demand(counts().ended == ended, "every transfer is counted once");
}

caf::actor fault_world::new_session() {
  return system.spawn<caf::hidden>([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](session_step& s) { s.run(self); }};
  });
}

void fault_world::end(const caf::actor& session, const status& why) {
  in(session, [this, why](auto* self) {
    std::erase_if(open_, [self](auto& one) { return one->asker == self->address(); });
    self->quit(actors::to_caf_error(why));
  });
}

void fault_world::in(const caf::actor& session, std::function<void(caf::event_based_actor*)> f) {
  caf::anon_send(session, session_step{std::move(f)});
}

void fault_world::answered(
  const std::shared_ptr<question>& one, const std::function<void()>& then) {
  std::erase(open_, one);
  if (over_)
    return;
  try {
    demand(now() <= one->deadline, one->what + " was answered after its deadline");
    then();
  } catch (...) {
    if (!broken_)
      broken_ = std::current_exception();
  }
}

// Actors take turns in any order; each handles its messages in order.
bool fault_world::work_one() {
  if (sched_.jobs.empty())
    return false;
  std::swap(sched_.jobs.front(), sched_.jobs[random.below(sched_.jobs.size())]);
  sched_.run_once();
  if (broken_ && !over_)
    std::rethrow_exception(broken_);
  return true;
}

void fault_world::work_off() {
  while (work_one()) {
  }
}

void fault_world::pass(std::chrono::milliseconds time) {
  work_off();
  sched_.advance_time(time);
  for (auto& one : open_)
    demand(now() <= one->deadline, one->what + " had no answer by its deadline");
}

void fault_world::happen() {
  auto what = random.below(100);
  if (what < 60 && work_one())
    return;
  if (
    what < 90 &&
    (random.percent(50) ? driver->step() || other_one() : other_one() || driver->step()))
    return;
  pass(std::chrono::milliseconds{random.between(1, 120)});
}

void fault_world::settle() {
  while (!open_.empty())
    happen();
  work_off();
}

void fault_world::finish() {
  settle();
  do {
    driver->end_all();
    work_off();
  } while (other_one());
  // Timers that check deadlines end by themselves, the last one when transfers that a driver forgot
  // are given up (limits.progress_timeout).
  for (int i = 0; i < 8; ++i)
    pass(10s);
  work_off();
}

} // namespace millrace::testing
