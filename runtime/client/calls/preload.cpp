// Opens the files, reserves memory, lets the samples be moved there, and publishes the set; or
// helps another client that does so. Begins again without files that turn out to be damaged, where
// that is wanted.
#include <millrace/core/rounding.hpp>
#include <millrace/runtime/client/calls/preload.hpp>
#include <millrace/runtime/client/calls/sample_moving.hpp>
#include <millrace/runtime/client/calls/set_files.hpp>
#include <millrace/runtime/client/calls/set_joining.hpp>
#include <millrace/runtime/client/calls/set_parts.hpp>
#include <millrace/runtime/client/calls/set_reserving.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace millrace::runtime {

namespace {

using storage::samples::damaged_file;
using storage::samples::sample_reader;

constexpr auto pause_min = std::chrono::milliseconds{10},
               pause_max = std::chrono::milliseconds{1000},
               pause_max_shared = std::chrono::milliseconds{100};

// The bytes of some samples of a field. The reader has checked that the sums have at most 63 bits.
sample_field described(
  const sample_reader& reader, std::size_t f, std::uint64_t first, std::uint64_t count) {
  auto& field = reader.fields()[f];
  sample_field out{.sample = field.sample, .varies = field.varies};
  if (field.varies)
    for (auto length : reader.lengths(f).subspan(first, count)) {
      out.data_bytes += length;
      out.space_bytes += round_up(length, sample_alignment);
    }
  return out;
}

set_info description_of(
  const preload_call& call, const sample_reader& reader, const std::vector<std::string>& late,
  std::uint64_t first, std::uint64_t count) {
  set_info out;
  out.name = call.name;
  out.samples = count;
  out.source = reader.source();
  out.while_used = call.options.while_used;
  if (names_bytes(late) <= left_out_bytes_max)
    out.left_out = late;
  out.window_bytes = call.options.window_bytes;
  for (std::size_t f = 0; f < reader.fields().size(); ++f)
    out.fields.push_back(described(reader, f, first, count));
  return out;
}

// What the home of the set has now.
result<set_info> describe_now(const preload_call& call) {
  auto home = data_home(*call.core, call.name);
  return describe_at(call.core, home.value_or(""), call.name).result();
}

// The samples of an append, as its first part describes them.
std::optional<set_info> describe_append(const preload_call& call, const set_id& id) {
  auto done = call.core->make_promise<set_info>();
  set_view::open(
    call.core, data_home(*call.core, call.name).value_or(""), call.name, id,
    [done](const result<std::shared_ptr<set_view>>& opened) {
      done.set(opened ? base_of((*opened)->info()) : fail(opened.error()));
    });
  auto found = done.get_future().result();
  return found ? std::optional{*found} : std::nullopt;
}

// What is there of the same files, perhaps without some that are damaged.
std::optional<set_info> there_already(const preload_call& call, std::uint64_t source) {
  auto found = describe_now(call);
  auto base = found ? base_of(*found) : found;
  if (!base || is_window(*base) != (call.options.window_bytes > 0))
    return std::nullopt;
  if (base->source == source)
    return *base;
  if (call.appends)
    for (auto& more : found->appended)
      if (more.source == source)
        return describe_append(call, more.id);
  return std::nullopt;
}

// Whether an error says that a filling is over, at least for this client.
bool has_ended(const status& why) {
  return why.code() == errc::not_found || why.code() == errc::permission_denied ||
    why.code() == errc::peer_lost;
}

// Whether several clients may read the files of a set. Files that are best read in order are read
// by one: an entry of NPZ has one checksum, which only tells who reads all of it.
bool may_share(const preload_call& call, const sample_reader& reader, const set_info& whole) {
  return !call.appends && !is_window(whole) && !reader.prefers_order();
}

// Returns the nodes among which a set is divided; one for a set that lies whole on its home.
result<std::vector<std::string>> nodes_for(const preload_call& call, const set_info& whole) {
  auto nodes = data_homes(*call.core, call.name);
  if (!nodes)
    return nodes;
  if (is_window(whole) && call.options.servers > 1)
    return fail(
      errc::invalid_argument, "preloading {}: a window lies on one data server, and servers is {}",
      call.name, call.options.servers);
  if (is_window(whole))
    return std::vector{nodes->front()};
  auto wanted = call.options.servers == 0 ? nodes->size() : call.options.servers;
  if (call.options.servers > nodes->size())
    return fail(
      errc::invalid_argument,
      "preloading {}: servers is {}, more than the data servers that there are ({}); 0 takes all",
      call.name, call.options.servers, nodes->size());
  auto most = std::min<std::uint64_t>(whole.samples, set_parts_max);
  nodes->resize(std::max<std::size_t>(std::min<std::uint64_t>(wanted, most), 1));
  return nodes;
}

} // namespace

// What is known of damaged files, from one attempt to the next.
struct preloading::damage {
  std::vector<damaged_file> left_out;
  /// Of these, what was found by reading samples; sorted. The set names it, so that the same
  /// samples are found when the files are opened again.
  std::vector<std::string> late;
  bool is_known = false; // a set that is there has said it

  void add_late(const std::vector<damaged_file>& files) {
    for (auto& file : files) {
      left_out.push_back(file);
      late.push_back(file.path);
    }
    std::ranges::sort(late);
  }
};

// Preloads what is not left out. What a read has found damaged is added to what is known. It is the
// leader of a filling, or helps, or waits for the end of another one.
class preloading::attempt {
public:
  attempt(const preload_call& call, damage& known, bool again)
    : call_(call), known_(known), again_(again) {}

  /// May be called again if it failed with `busy`.
  result<preloaded_set> run() {
    if (auto bad = open(); !bad.ok())
      return fail(bad);
    auto outcome = go_on(*reader_);
    if (outcome)
      outcome->read_bytes = read_bytes_;
    auto is_over = !outcome && outcome.error().code() != errc::busy;
    if (auto found = reader_->damaged(); is_over && !learned_ && !found.empty()) {
      known_.add_late(found);
      learned_ = true;
    }
    return outcome;
  }

  /// Returns whether it fills the set itself, alone or with others.
  bool leads() const noexcept { return held_ != nullptr; }
  /// Returns whether it fills the set together with others.
  bool shares() const noexcept { return moving_ != nullptr; }
  /// Returns whether others have filled some of the set that it has filled.
  bool was_shared() const noexcept { return was_shared_; }
  /// Returns the bytes of samples that are written, by anybody, as far as it is known.
  std::uint64_t known_bytes() const noexcept {
    return read_bytes_ + (moving_ ? moving_->moved_bytes() + moving_->bytes_elsewhere() : 0);
  }

  /// Another client had the set. What it has given up returns a little later.
  void has_waited() noexcept { again_ = true; }
  /// Returns whether more is known now than when it began.
  bool has_learned() const noexcept { return learned_; }

private:
  status open() {
    if (!reader_) {
      auto how = sample_options_of(call_.options);
      how.is_stopped = [mark = call_.mark] { return mark->is_stopped(); };
      auto opened = storage::samples::open_samples(call_.files, how, &known_.left_out);
      if (!opened)
        return opened.error().within(doing(call_));
      reader_ = std::move(*opened);
    }
    return call_.mark->is_stopped()
      ? status{errc::cancelled, "{}: cancelled by the caller", doing(call_)}
      : status{};
  }

  set_info describe(const sample_reader& reader, std::uint64_t first, std::uint64_t count) const {
    return description_of(call_, reader, known_.late, first, count);
  }

  // The whole set. Where its fields lie is the same for regions of any size.
  result<set_info> describe_whole(const sample_reader& reader) const {
    auto out = describe(reader, 0, reader.samples());
    out.region_bytes = region_bytes_min;
    auto bad = place_fields(out);
    return bad.ok() ? result<set_info>{std::move(out)} : fail(bad);
  }

  result<preloaded_set> go_on(sample_reader& reader) {
    if (held_)
      return fill();
    if (joined_)
      if (auto waits = help(); !waits.ok())
        return fail(waits);
    auto whole = describe_whole(reader);
    if (!whole)
      return fail(whole.error());
    return begin(reader, *whole);
  }

  result<preloaded_set> begin(sample_reader& reader, const set_info& whole) {
    auto describes = [&](std::uint64_t first, std::uint64_t count) {
      return describe(reader, first, count);
    };
    auto held = std::make_unique<set_reserving>(call_, again_);
    auto bad = reserve(*held, whole, describes);
    if (bad.code() == errc::already_exists && call_.options.on_error == damage_policy::skip)
      if (auto known = there_already(call_, whole.source))
        return as_there(*known, bad);
    if (bad.code() == errc::busy && may_join_ && may_share(call_, reader, whole))
      return fail(join(reader, whole, describes, bad));
    if (!bad.ok())
      return fail(bad);
    if (is_window(whole))
      remember_files();
    else if (auto wanted = held->to_fill(); !wanted.empty())
      moving_ = std::make_unique<sample_moving>(call_, reader, wanted, moving_role::leader);
    held_ = std::move(held);
    return fill();
  }

  // As long as others move what they have claimed, it comes again; and when the data server is too
  // busy to publish.
  result<preloaded_set> fill() {
    auto moved = moving_ ? moving_->run() : result<bool>{true};
    if (moved && !*moved)
      return fail(errc::busy, "{}: other clients move some of its samples", doing(call_));
    if (!moved && is_refused_for_now(moved.error()))
      return fail(moved.error());
    was_shared_ = was_shared_ || (moving_ && moving_->bytes_elsewhere() > 0);
    end_moving();
    auto out = moved ? held_->publish(was_shared_) : fail(moved.error().within(doing(call_)));
    if (!moved || out || out.error().code() != errc::busy)
      held_ = nullptr;
    return out && call_.appends ? there_now(out->set, out->existed) : out;
  }

  status reserve(set_reserving& held, const set_info& whole, const describing& describes) const {
    if (call_.appends)
      return held.reserve_more(whole, describes);
    auto nodes = nodes_for(call_, whole);
    return nodes ? held.reserve_all(whole, std::move(*nodes), describes) : nodes.error();
  }

  // The whole set, with all that was appended. `brought`: what was preloaded, or an append.
  result<preloaded_set> there_now(const set_info& brought, bool existed) const {
    auto found = describe_now(call_);
    auto whole = found ? whole_of(*found) : found;
    if (!whole)
      return fail(whole.error());
    auto is_it = [&](auto& one) { return one.id == brought.id; };
    if (!is_it(*whole) && std::ranges::none_of(whole->appended, is_it))
      return fail(errc::not_found, "{}: the set was unloaded meanwhile", doing(call_));
    return preloaded_set{std::move(*whole), existed, {}};
  }

  // Returns why it waits: another client fills the set, whether or not this one helps.
  status join(
    sample_reader& reader, const set_info& whole, const describing& describes, const status& why) {
    auto joined = std::make_unique<set_joining>(call_);
    auto bad = joined->join_all(whole, data_home(*call_.core, call_.name).value_or(""), describes);
    may_join_ = bad.code() != errc::unsupported;
    if (!bad.ok())
      return why;
    joined_ = std::move(joined);
    filled_by_ = why;
    moving_ =
      std::make_unique<sample_moving>(call_, reader, joined_->to_fill(), moving_role::helper);
    auto waits = help();
    return waits.ok() ? why : waits;
  }

  // Moves what it can. Then it waits, and comes again, as another client may leave some. Returns
  // why it waits, `cancelled`, or what the program has thrown; ok when it has left the filling. It
  // joins again if the filling has ended. What it cannot do is for the leader, who decides what
  // becomes of damaged files.
  status help() {
    auto moved = moving_->run();
    if (moved || is_refused_for_now(moved.error()))
      return filled_by_;
    auto& why = moved.error();
    may_join_ = !moving_->is_own_failure() && has_ended(why);
    auto is_over = why.code() == errc::cancelled || moving_->program_has_failed();
    end_moving();
    joined_ = nullptr;
    return is_over ? why.within(doing(call_)) : status{};
  }

  bool is_refused_for_now(const status& why) const {
    return why.code() == errc::busy && !moving_->has_failed();
  }

  void end_moving() {
    if (moving_)
      read_bytes_ += moving_->moved_bytes();
    moving_ = nullptr;
  }

  // A set without files that its preload found damaged late has fewer samples than they seem to
  // have. If it names them, the preload begins again without them, so that it may restore parts.
  result<preloaded_set> as_there(const set_info& set, const status& why) {
    if (set.left_out.empty() || set.left_out == known_.late)
      return there_now(set, true);
    if (std::exchange(known_.is_known, true))
      return fail(why);
    known_.left_out.clear();
    known_.left_out.reserve(set.left_out.size());
    known_.late = set.left_out;
    for (auto& path : set.left_out)
      known_.left_out.push_back({path, left_out_by(set)});
    learned_ = true;
    return fail(why);
  }

  // Whoever reads the window through this client has the files.
  void remember_files() const {
    call_.core->remember_window(
      call_.name, {static_cast<const set_file_options&>(call_.options), call_.files});
  }

  const preload_call& call_;
  damage& known_;
  bool again_;
  bool may_join_ = true;
  status filled_by_; // why it could not reserve the set
  std::uint64_t read_bytes_ = 0;
  bool was_shared_ = false;
  std::unique_ptr<sample_reader> reader_; // null: not opened yet
  std::unique_ptr<set_reserving> held_;   // null: it does not lead
  std::unique_ptr<set_joining> joined_;   // null: it does not help
  std::unique_ptr<sample_moving> moving_; // null: it moves no samples
  bool learned_ = false;
};

preloading::preloading(preload_call call)
  : call_(std::move(call)), known_(std::make_unique<damage>()) {}

preloading::~preloading() = default;

// What is left of an attempt asks the client, and waits; so it goes here.
result<std::optional<preloaded_set>> preloading::go_on(std::shared_ptr<client_core> core) {
  call_.core = std::move(core);
  try {
    auto outcome = make_attempts();
    if (!outcome || *outcome) // it is over
      attempt_ = nullptr;
    call_.core = nullptr;
    return outcome;
  } catch (...) {
    attempt_ = nullptr;
    call_.core = nullptr;
    throw;
  }
}

// Each attempt leaves out one file more at least, or what a set that is there leaves out, or is the
// last one.
result<std::optional<preloaded_set>> preloading::make_attempts() {
  if (auto node = data_home(*call_.core, call_.name); !node)
    return fail(node.error());
  for (;; again_ = true) {
    if (!attempt_)
      attempt_ = std::make_unique<attempt>(call_, *known_, again_);
    auto outcome = attempt_->run();
    if (!outcome && waits_after(outcome.error())) {
      pause_max_ = attempt_->shares() ? pause_max_shared : pause_max;
      attempt_->has_waited();
      return std::nullopt;
    }
    auto may_go_on = call_.options.on_error == damage_policy::skip && !call_.mark->is_stopped();
    auto goes_on = !outcome && attempt_->has_learned() && may_go_on;
    was_shared_ = attempt_->was_shared();
    attempt_ = nullptr;
    if (goes_on)
      continue;
    if (!outcome)
      return fail(outcome.error());
    for (auto& file : known_->left_out)
      outcome->skipped.push_back({file.path, file.why});
    return std::move(*outcome);
  }
}

bool preloading::waits_after(const status& why) {
  if (why.code() != errc::busy || call_.mark->is_stopped())
    return false;
  auto now = steady_clock::now();
  auto bytes = attempt_->known_bytes();
  if (!waits_until_ || bytes > most_bytes_)
    waits_until_ = now + preload_wait_max;
  most_bytes_ = std::max(bytes, most_bytes_);
  if (!attempt_->leads() && !std::exchange(told_, true)) {
    auto tell = [&](auto, auto) {
      if (call_.options.waits)
        call_.options.waits(why);
      return true;
    };
    static_cast<void>(call_.mark->report(tell, 0, 0));
  }
  return now < *waits_until_;
}

bool preloading::leads() const { return attempt_ && attempt_->leads(); }

std::chrono::milliseconds preloading::pause() {
  pause_ = std::clamp(2 * pause_, pause_min, pause_max_);
  return pause_;
}

} // namespace millrace::runtime
