// The follower is asked for news once; what it tells is loaded when a buffer is free.
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/weights_buffers.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace millrace::runtime {

namespace {

using std::chrono::milliseconds;

constexpr std::size_t buffers = 2;
constexpr std::uint64_t alignment = 64;
constexpr milliseconds news_time{600'000}; // of one question for news
constexpr milliseconds pause{200};         // before a load that failed is tried again

// The same version cannot be loaded by trying again.
bool needs_newer(const status& why) {
  return why.code() == errc::invalid_argument || why.code() == errc::corrupt_data ||
    why.code() == errc::not_found || why.code() == errc::unsupported;
}

// Returns where each tensor begins in a buffer, and the end.
result<std::vector<std::uint64_t>> begins_of(const std::vector<wanted_tensor>& tensors) {
  layout all;
  for (auto& one : tensors)
    all.tensors.push_back(one.desc);
  std::vector<std::uint64_t> out;
  std::uint64_t at = 0;
  for (auto& one : all.tensors) {
    auto bytes = size_bytes(one);
    if (!bytes)
      return fail(bytes.error());
    out.push_back(at);
    if (__builtin_add_overflow(at, *bytes + alignment - 1, &at))
      return fail(errc::invalid_argument, "the size of the tensors overflows 64 bits");
    at = round_down(at, alignment);
  }
  out.push_back(at);
  return out;
}

} // namespace

result<std::shared_ptr<weights_buffers>> weights_buffers::make(
  const std::shared_ptr<client_core>& core, std::string group, std::string name,
  std::vector<wanted_tensor> tensors, weights_reader_options options) {
  if (tensors.empty())
    return fail(errc::invalid_argument, "reading weights {}: no tensors are given", name);
  auto begins = begins_of(tensors);
  if (!begins)
    return fail(begins.error().within("reading weights " + name));
  if (begins->back() > std::numeric_limits<std::uint64_t>::max() / (2 * buffers))
    return fail(
      errc::no_space, "the buffers of weights {} have {} bytes each", name, begins->back());
  auto ring = receive_ring::make(
    receive_ring::registered(core->runs_on()->fabric()), buffers,
    std::max(begins->back(), alignment));
  if (!ring)
    return fail(ring.error().within("the buffers of weights " + name));
  std::shared_ptr<weights_buffers> out{new weights_buffers{
    core, std::move(group), std::move(name), std::move(tensors), std::move(options)}};
  out->begins_ = std::move(*begins);
  out->ring_ = std::move(*ring);
  out->ring_->when_freed([weak = std::weak_ptr{out}] {
    auto self = weak.lock();
    if (self && self->core_->refusal().ok())
      self->core_->run([self] { self->go_on(); });
  });
  out->core_->run([out] { out->go_on(); });
  return out;
}

weights_buffers::weights_buffers(
  const std::shared_ptr<client_core>& core, std::string group, std::string name,
  std::vector<wanted_tensor> tensors, weights_reader_options options)
  : core_(core->shared_from_this()), name_(name), tensors_(std::move(tensors)),
    options_(std::move(options)),
    following_(weights_following::begin(core, std::move(group), std::move(name))),
    waiting_(waiting_calls<weights_ptr>::make(core_)) {}

weights_ptr weights_buffers::current() const {
  if (!core_->refusal().ok())
    return nullptr;
  std::lock_guard guard{mutex_};
  return current_;
}

std::vector<load_target> weights_buffers::targets_in(std::byte* place) const {
  std::vector<load_target> out;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    out.push_back(
      {{tensors_[i].desc, place + begins_[i], {}}, tensors_[i].first_row, tensors_[i].offsets});
  return out;
}

void weights_buffers::go_on() {
  if (stopped_)
    return;
  if (has_newer() && !loading_)
    load();
  if (std::exchange(waits_, true))
    return;
  following_->next(news_time).chain([weak = weak_from_this()](const result<weights_version>& news) {
    if (auto self = weak.lock())
      self->core_->run([self, news] { self->on_news(news); });
  });
}

bool weights_buffers::has_newer() const {
  auto newest = following_->newest();
  auto loaded = current();
  return newest && newest != unusable_ && (!loaded || *newest != loaded->version);
}

void weights_buffers::on_news(const result<weights_version>& news) {
  waits_ = false;
  if (stopped_)
    return;
  if (news || news.error().code() == errc::deadline_exceeded)
    return go_on();
  failed_ = news.error();
  waiting_->fail_all(failed_);
  try_again();
}

void weights_buffers::load() {
  auto place = ring_->lend();
  if (!place)
    return; // it goes on when the program drops a version
  loading_ = true;
  failed_ = {};
  tried_ = following_->newest();
  running_ = following_->load(targets_in(place->data), options_.timeout);
  running_.chain([weak = weak_from_this(), place](const result<weights_version>& outcome) {
    if (auto self = weak.lock())
      self->core_->run([self, place, outcome] { self->on_loaded(place, outcome); });
  });
}

void weights_buffers::on_loaded(const place_ptr& place, const result<weights_version>& outcome) {
  loading_ = false;
  if (stopped_)
    return;
  failed_ = outcome ? status{} : outcome.error();
  if (outcome) {
    show(place, *outcome);
    return go_on();
  }
  if (!needs_newer(failed_))
    return try_again();
  unusable_ = tried_;
  waiting_->fail_all(failed_);
  go_on();
}

void weights_buffers::try_again() {
  core_->at(steady_clock::now() + pause, [weak = weak_from_this()] {
    if (auto self = weak.lock())
      self->go_on();
  });
}

void weights_buffers::show(const place_ptr& place, const weights_version& version) {
  auto loaded = std::make_shared<read_weights>();
  loaded->version = version;
  for (auto& target : targets_in(place->data))
    loaded->tensors.push_back(std::move(target.into));
  weights_ptr fresh{loaded.get(), [loaded, place](const read_weights*) {}};
  weights_ptr before; // its buffer returns without the lock
  {
    std::lock_guard guard{mutex_};
    before = std::exchange(current_, fresh);
  }
  auto given = std::exchange(given_, ++loads_);
  if (!waiting_->answer(fresh))
    given_ = given;
  std::lock_guard guard{telling_};
  if (options_.on_version && is_told_)
    options_.on_version(fresh);
}

future<weights_ptr> weights_buffers::next(milliseconds timeout) {
  if (auto refused = core_->refused<weights_ptr>())
    return *refused;
  auto done = core_->make_promise<weights_ptr>();
  auto deadline = core_->deadline_after(timeout);
  core_->run([self = shared_from_this(), done, deadline] { self->add(done, deadline); });
  return done.get_future();
}

void weights_buffers::add(const promise<weights_ptr>& done, time_point deadline) {
  if (stopped_)
    return static_cast<void>(done.set(fail(errc::cancelled, "the reader was dropped")));
  if (given_ != loads_) {
    auto before = std::exchange(given_, loads_);
    if (!done.set(current()))
      given_ = before;
    return;
  }
  if (needs_newer(failed_))
    return static_cast<void>(done.set(fail(failed_)));
  waiting_->add(done, deadline, [self = shared_from_this()] { return self->late(); });
}

status weights_buffers::late() const {
  status out{errc::deadline_exceeded, "no newer weights of {} were loaded in time", name_};
  if (!failed_.ok())
    out = {errc::deadline_exceeded, "{}; {}", out.detail(), failed_.to_string()};
  return out;
}

void weights_buffers::stop() {
  if (!core_->refusal().ok())
    return;
  {
    std::lock_guard guard{telling_};
    is_told_ = false;
  }
  core_->run([self = shared_from_this()] {
    if (std::exchange(self->stopped_, true))
      return;
    self->following_->stop();
    if (self->running_.valid())
      self->running_.cancel();
    self->waiting_->fail_all({errc::cancelled, "the reader of {} was dropped", self->name_});
  });
}

} // namespace millrace::runtime
