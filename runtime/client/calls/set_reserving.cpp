// The home is asked first, then the other nodes one after the other; they are published at once.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/runtime/client/calls/set_parts.hpp>
#include <millrace/runtime/client/calls/set_reserving.hpp>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace millrace::runtime {

namespace {

constexpr auto look_again = std::chrono::milliseconds{10}; // at the mark
constexpr auto freed_within = std::chrono::seconds{30}; // memory of a reservation that was given up

set_division divided(const set_info& whole, const set_id& id, std::vector<std::string> nodes) {
  set_division out;
  out.whole = id;
  out.nodes = std::move(nodes);
  out.samples = whole.samples;
  for (auto& field : whole.fields)
    out.fields.push_back({field.data_bytes, field.space_bytes});
  return out;
}

// Checks that what the server has reserved is what was asked for.
status check_new(const actors::set_reservation& reserved, set_info asked) {
  auto& set = reserved.set;
  asked.region_bytes = set.region_bytes;
  auto bad = place_fields(asked);
  auto same = set.name == asked.name && set.fields == asked.fields &&
    set.samples == asked.samples && set.source == asked.source && set.left_out == asked.left_out &&
    set.division == asked.division && set.window_bytes == asked.window_bytes &&
    set.extension == asked.extension && reserved.regions.size() == region_count(set);
  return bad.ok() && !same ? status{errc::protocol_error, "it is something else"} : bad;
}

// A set that is there has its own places, and perhaps its own division.
status check_existing(const actors::set_reservation& reserved, set_info asked) {
  auto bad = place_fields(asked);
  auto whole = base_of(reserved.set);
  auto same = whole && whole->name == asked.name && have_same_samples(*whole, asked) &&
    reserved.set.division.index == asked.division.index;
  return bad.ok() && !same ? status{errc::protocol_error, "it is something else"} : bad;
}

// Whether an answer is late, or lost.
bool may_have_happened(const status& why) {
  return why.code() == errc::deadline_exceeded || why.code() == errc::peer_lost;
}

} // namespace

status check_reserved(const actors::set_reservation& reserved, set_info asked) {
  auto bad = validate(reserved.set);
  if (asked.division.index == 0) // the home says which append it is
    asked.extension.number = reserved.set.extension.number;
  asked.region_bytes = std::max(reserved.set.region_bytes, region_bytes_min);
  if (bad.ok())
    bad = reserved.exists ? check_existing(reserved, asked) : check_new(reserved, asked);
  return bad.ok()
    ? bad
    : status{
        errc::protocol_error, "the data server has reserved something else than {}: {}", asked.name,
        bad.detail()};
}

set_info describe_part(
  const describing& describe, const set_division& division, std::uint64_t samples,
  std::size_t index) {
  auto count = std::max<std::size_t>(division.nodes.size(), 1);
  auto first = first_sample(samples, count, index);
  auto out = describe(first, first_sample(samples, count, index + 1) - first);
  out.division = division;
  out.division.index = static_cast<std::uint32_t>(index);
  return out;
}

// Without its client, the connection is gone, and everything with it. Without memory for asking,
// what is reserved stays until the connection ends.
set_reserving::~set_reserving() {
  if (over_ || parts_.empty() || !call_.core)
    return;
  try {
    give_up_all();
  } catch (const std::bad_alloc&) { // see above
  }
}

void set_reserving::give_up_all() const {
  // Others may have found the set that they have filled, too.
  if (may_stay_)
    return static_cast<void>(
      close(parts_.front().node(), parts_.front().part.reserved.number).result());
  // Nobody opens a set of which parts are gone, and nobody preloads the name before they are.
  if (publishes_home_)
    give_up(0, 1);
  give_up(1, parts_.size());
  if (!publishes_home_)
    give_up(0, 1);
}

// Waits, as long as the preload is wanted. A node that does not answer soon may be lost: a preload
// that needs it hears so, and others go on without it.
bool set_reserving::is_answered(const future<set_info>& asked, time_point until) const {
  while (!asked.ready() && !call_.mark->is_stopped() && steady_clock::now() < until)
    static_cast<void>(asked.wait_for(look_again));
  return asked.ready() && asked.result();
}

// Parts of the same name that other nodes have, whether or not they belong to a set. A set that its
// home has needs none of them: the preload that has made it has looked.
std::vector<set_info> set_reserving::find_leftovers(const std::string& home) const {
  auto soon = [&] {
    return steady_clock::now() + std::chrono::milliseconds{call_.core->connect_timeout_ms()};
  };
  std::vector<set_info> out;
  auto there = describe_at(call_.core, home, call_.name);
  if (is_answered(there, soon()) && there.result()->division.index == 0)
    return out;
  auto nodes = data_homes(*call_.core, call_.name).value_or(std::vector<std::string>{});
  std::erase(nodes, home);
  std::vector<future<set_info>> asked;
  asked.reserve(nodes.size());
  for (auto& node : nodes)
    asked.push_back(describe_at(call_.core, node, call_.name));
  auto until = soon();
  for (auto& one : asked)
    if (is_answered(one, until) && is_divided(*one.result()))
      out.push_back(*one.result());
  return out;
}

status set_reserving::reserve_all(
  const set_info& whole, std::vector<std::string> nodes, const describing& describe) {
  auto home = nodes.front();
  auto leftovers = find_leftovers(home);
  if (call_.mark->is_stopped())
    return {errc::cancelled, "{}: cancelled by the caller", doing(call_)};
  if (nodes.size() > 1)
    division_ = divided(whole, random_id<set_id>(), std::move(nodes));
  // Parts of the same samples stay, if the home has lost its own.
  for (auto& left : leftovers)
    if (
      have_same_samples(left, whole) && left.window_bytes == whole.window_bytes &&
      left.division.nodes.front() == home)
      division_ = left.division;
  if (auto bad = reserve_parts(whole, home, describe); !bad.ok())
    return bad;
  // Those of nodes that have no part now.
  for (auto& left : leftovers)
    if (left.division.nodes.front() == home && left.division.whole != division_.whole) {
      auto& node = left.division.nodes[left.division.index];
      auto gone =
        ask_data(*call_.core, node, actors::unload_set_request{call_.name, left.division.whole});
      if (!gone.result() && gone.result().error().code() == errc::permission_denied)
        return gone.result().error().within(
          fmt::format("what node {} has of another preload", node));
    }
  return {};
}

// Describes the set that samples are appended to. One that is being filled is none yet, so its home
// is asked for memory all the same: it says `busy` then.
result<set_info> set_reserving::find_target(const std::string& home, const set_info& more) {
  for (auto again = false;; again = true) {
    auto found = describe_at(call_.core, home, call_.name).result();
    if (found || again || found.error().code() != errc::not_found)
      return found
        ? found
        : fail(found.error().within("nothing is appended to a set that is not there; preload it"));
    auto asked = more;
    asked.extension.of = random_id<set_id>();
    if (auto refused = ask_for(home, asked); !refused && refused.error().code() != errc::not_found)
      return fail(refused.error());
  }
}

status set_reserving::reserve_more(const set_info& more, const describing& describe) {
  auto home = data_home(*call_.core, call_.name);
  if (!home)
    return home.error();
  auto to = find_target(*home, more);
  auto base = to ? base_of(*to) : to;
  if (!base)
    return base.error();
  if (auto bad = check_appends(*base, more); !bad.ok())
    return bad;
  extension_.of = base->id;
  if (is_divided(*to))
    division_ = divided(more, random_id<set_id>(), to->division.nodes);
  return reserve_parts(more, *home, describe);
}

status set_reserving::reserve_parts(
  const set_info& whole, const std::string& home, const describing& describe) {
  auto part = [&](std::size_t index) {
    auto out = describe_part(describe, division_, whole.samples, index);
    out.extension = extension_;
    return out;
  };
  if (auto bad = reserve_part(0, home, part(0)); !bad.ok())
    return bad;
  auto& first = parts_.front().part.reserved.set;
  if (home_is_there())
    division_ = first.division;
  extension_ = first.extension; // none if the preload has brought these samples
  for (std::size_t i = 1; i < division_.nodes.size(); ++i)
    if (auto bad = reserve_part(i, division_.nodes[i], part(i)); !bad.ok())
      return bad.within(fmt::format("part {} at node {}", i, division_.nodes[i]));
  return {};
}

status set_reserving::reserve_part(std::size_t index, const std::string& node, set_info asked) {
  auto got = ask_for(node, asked);
  if (!got && index > 0 && got.error().code() == errc::already_exists) {
    if (auto bad = unload_leftover(node, got.error()); !bad.ok())
      return bad;
    got = ask_for(node, asked);
  }
  if (!got)
    return got.error();
  auto count = std::max<std::size_t>(division_.nodes.size(), 1);
  parts_.push_back(
    {{std::move(*got),
      first_sample(is_divided(asked) ? asked.division.samples : asked.samples, count, index),
      node}});
  auto bad = check_reserved(parts_.back().part.reserved, std::move(asked));
  return bad.ok() ? check_nodes(*call_.core, parts_.back().part.reserved.set) : bad;
}

// Another preload's memory returns a little later than the home hears of its end.
result<actors::set_reservation> set_reserving::ask_for(
  const std::string& node, const set_info& asked) {
  auto until = steady_clock::now() + freed_within;
  auto after_others = !parts_.empty() && !home_is_there();
  for (;;) {
    auto timeout = call_.core->timeout_ms(call_.options.timeout);
    auto got = ask_data(*call_.core, node, actors::reserve_set_request{asked, timeout}).result();
    auto code = got ? errc::ok : got.error().code();
    auto may_change = (code == errc::busy && after_others) || (code == errc::no_space && again_);
    if (!may_change || call_.mark->is_stopped() || steady_clock::now() >= until)
      return got;
    sleep_for(std::chrono::milliseconds{10});
  }
}

// The home's reservation says that no set has these parts.
status set_reserving::unload_leftover(const std::string& node, const status& why) {
  auto found = describe_at(call_.core, node, call_.name).result();
  auto is_ours = found && is_divided(*found) && found->division.index > 0 &&
    found->division.nodes.front() == parts_.front().node() &&
    found->division.whole != division_.whole;
  if (!is_ours)
    return why;
  auto gone =
    ask_data(*call_.core, node, actors::unload_set_request{call_.name, found->division.whole})
      .result();
  return gone || gone.error().code() == errc::not_found
    ? status{}
    : gone.error().within("what is left of another preload");
}

std::vector<const reserved_part*> set_reserving::to_fill() const {
  std::vector<const reserved_part*> out;
  for (auto& one : parts_)
    if (one.is_new())
      out.push_back(&one.part);
  return out;
}

future<set_info> set_reserving::begin_publish(const held_part& one) const {
  return ask_data(
    *call_.core, one.node(),
    actors::publish_set_request{
      one.part.reserved.number, call_.core->timeout_ms(call_.options.timeout)});
}

status set_reserving::publish_one(const held_part& one, const result<set_info>& outcome) const {
  if (!outcome)
    return outcome.error();
  return *outcome == one.part.reserved.set
    ? status{}
    : status{
        errc::protocol_error, "the data server of node {} has published something else",
        one.node()};
}

status set_reserving::publish_rest() {
  std::vector<std::pair<held_part*, future<set_info>>> asked;
  for (std::size_t i = 1; i < parts_.size(); ++i)
    if (parts_[i].is_new() && !parts_[i].published)
      asked.emplace_back(&parts_[i], begin_publish(parts_[i]));
  status why;
  for (auto& [one, published] : asked) {
    auto bad = publish_one(*one, published.result());
    one->published = bad.ok();
    MILLRACE_KILL_POINT("set.part_published");
    if (why.ok() && !bad.ok())
      why = bad.within(fmt::format("publishing the part at node {}", one->node()));
  }
  return why;
}

status set_reserving::publish_home() {
  if (home_is_there())
    return {};
  publishes_home_ = true;
  auto& home = parts_.front();
  return publish_one(home, begin_publish(home).result());
}

result<preloaded_set> set_reserving::publish(bool shared) {
  if (call_.mark->is_stopped())
    return fail(errc::cancelled, "{}: cancelled by the caller", doing(call_));
  auto existed = home_is_there();
  auto home_first = is_planted(defect::home_published_first);
  auto bad = home_first ? publish_home() : publish_rest();
  MILLRACE_KILL_POINT("set.half_published");
  if (bad.ok())
    bad = home_first ? publish_rest() : publish_home();
  may_stay_ = shared && publishes_home_ && may_have_happened(bad);
  if (!bad.ok())
    return fail(bad);
  over_ = true;
  return whole_of(parts_.front().part.reserved.set).map([&](const set_info& whole) {
    return preloaded_set{whole, existed, {}};
  });
}

future<actors::done_reply> set_reserving::close(
  const std::string& node, std::uint64_t number) const {
  return ask_data(*call_.core, node, actors::close_set_request{number});
}

// Also what may have been published.
void set_reserving::give_up(std::size_t from, std::size_t to) const {
  std::vector<future<actors::done_reply>> asked;
  for (auto i = from; i < to; ++i) {
    auto& set = parts_[i].part.reserved;
    if (!parts_[i].is_new())
      continue;
    asked.push_back(close(parts_[i].node(), set.number));
    asked.push_back(ask_data(
      *call_.core, parts_[i].node(), actors::unload_set_request{set.set.name, set.set.id}));
  }
  for (auto& one : asked)
    static_cast<void>(one.result());
}

} // namespace millrace::runtime
