// The home says how the set is divided; then the other parts are joined one after the other.
#include <millrace/runtime/client/calls/set_joining.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>

#include <new>
#include <utility>

namespace millrace::runtime {

// Nobody waits for the answers: a connection that is lost says the same. So does one that stands
// still, where there is no memory for asking.
set_joining::~set_joining() {
  if (!call_.core)
    return;
  try {
    for (auto& part : parts_)
      if (!part.reserved.exists)
        static_cast<void>(
          ask_data(*call_.core, part.node, actors::close_set_request{part.reserved.number}));
  } catch (const std::bad_alloc&) { // see above
  }
}

status set_joining::join_all(
  const set_info& whole, const std::string& home, const describing& describe) {
  auto asked = describe_part(describe, {}, whole.samples, 0);
  if (auto bad = join_part(home, 0, std::move(asked)); !bad.ok())
    return bad;
  if (auto bad = check_home(whole); !bad.ok())
    return bad;
  auto division = parts_.front().reserved.set.division;
  auto check =
    check_reserved(parts_.front().reserved, describe_part(describe, division, whole.samples, 0));
  for (std::size_t i = 1; check.ok() && i < division.nodes.size(); ++i) {
    asked = describe_part(describe, division, whole.samples, i);
    auto first = first_sample(whole.samples, division.nodes.size(), i);
    check = join_part(division.nodes[i], first, asked);
    if (check.ok())
      check = check_reserved(parts_.back().reserved, std::move(asked));
  }
  return check;
}

status set_joining::join_part(const std::string& node, std::uint64_t first, set_info asked) {
  auto timeout = call_.core->timeout_ms(call_.options.timeout);
  auto got =
    ask_data(*call_.core, node, actors::join_set_request{std::move(asked), timeout}).result();
  if (!got)
    return got.error();
  parts_.push_back({std::move(*got), first, node});
  return {};
}

// The division comes from a peer.
status set_joining::check_home(const set_info& whole) const {
  auto& set = parts_.front().reserved.set;
  auto bad = validate(set);
  if (bad.ok())
    bad = check_nodes(*call_.core, set);
  auto same = bad.ok() && have_same_samples(set, whole) && set.division.index == 0 &&
    (is_divided(set) ? set.division.samples : set.samples) == whole.samples;
  return !bad.ok() || same
    ? bad
    : status{
        errc::protocol_error, "the data server of node {} has let this client join another set",
        parts_.front().node};
}

std::vector<const reserved_part*> set_joining::to_fill() const {
  std::vector<const reserved_part*> out;
  out.reserve(parts_.size());
  for (auto& one : parts_)
    if (!one.reserved.exists)
      out.push_back(&one);
  return out;
}

} // namespace millrace::runtime
