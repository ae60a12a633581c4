// Opening a stream: the server's answer is checked before anything relies on it.
#include <millrace/runtime/client/calls/stream_view.hpp>

#include <algorithm>

namespace millrace::runtime {

namespace {

constexpr std::uint32_t patience_max_ms = 1000;
constexpr std::uint32_t answer_min_ms = 1000; // patience, and twice what the server's clock needs

status check(const actors::opened_stream& opened, const std::string& name) {
  auto& set = opened.places;
  auto& options = opened.stream.options;
  auto bad = validate(set);
  if (bad.ok())
    bad = validate(options);
  auto same = opened.stream.name == name && set.samples == options.capacity &&
    std::ranges::equal(set.fields, options.fields, {}, &sample_field::sample);
  if (bad.ok() && !same)
    bad = {errc::protocol_error, "its places are those of something else"};
  if (bad.ok() && opened.regions.size() != region_count(set))
    bad = {errc::protocol_error, "{} regions for {} bytes", opened.regions.size(), set.size_bytes};
  auto left = set.size_bytes;
  for (auto& region : opened.regions) {
    auto wanted = std::min(left, set.region_bytes);
    if (bad.ok() && size_bytes(region) != wanted)
      bad = {errc::protocol_error, "a region of {} bytes is not one", size_bytes(region)};
    left -= wanted;
  }
  return bad.ok() ? bad : status{errc::protocol_error, "stream {}: {}", name, bad.detail()};
}

} // namespace

void stream_view::open(
  std::shared_ptr<client_core> core, const std::string& name, bool writes,
  completion<std::shared_ptr<stream_view>> done) {
  auto mark = random_id<set_id>();
  ask_stream(*core, name, actors::open_stream_request{name, writes, core->timeout_ms(), mark})
    .chain([core, name, mark, done = std::move(done)](const result<actors::opened_stream>& opened) {
      if (!opened) {
        if (opened.error().code() == errc::deadline_exceeded)
          give_back_late(*core, name, mark);
        return done(fail(opened.error()));
      }
      std::shared_ptr<stream_view> view{new stream_view{core, *opened}};
      if (auto bad = check(*opened, name); !bad.ok()) {
        view->leave();
        return done(fail(bad));
      }
      done(view);
    });
}

// The server handles the requests of a connection in their order, so it has opened the stream
// before it sees this, if it ever does.
void stream_view::give_back_late(client_core& core, const std::string& name, const set_id& mark) {
  actors::leave_stream_request request;
  request.mark = mark;
  static_cast<void>(ask_stream(core, name, std::move(request)));
}

std::uint32_t stream_view::answer_ms() const {
  return std::max(core_->timeout_ms(), answer_min_ms);
}

std::uint32_t stream_view::patience_ms() const {
  return std::min(answer_ms() / 4, patience_max_ms);
}

void stream_view::leave() const {
  if (core_->refusal().ok())
    static_cast<void>(ask(actors::leave_stream_request{}));
}

// With `not_found` and `peer_lost` the lease has ended. With `invalid_argument` the stream has, and
// the server has taken what was returned. Who is busy has lent nothing, and taken nothing.
void stream_view::leave_after(const status& why, bool returns) const {
  auto code = why.code();
  auto is_known =
    code == errc::not_found || code == errc::peer_lost || code == errc::invalid_argument;
  if (!is_known && (returns || code != errc::busy))
    leave();
}

status stream_view::explained(const status& why) const {
  if (why.code() == errc::permission_denied)
    return {
      errc::not_found,
      "stream {} is not open any more: it was removed, or the connection was lost; open it again "
      "({})",
      name(), why.detail()};
  return status{why.code(), "{}", why.detail()}.within("stream " + name());
}

} // namespace millrace::runtime
