// Opens the streams of a link and watches them.
#include <millrace/core/codec.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/tcp/encrypted_socket.hpp>
#include <millrace/transport/tcp/peer_link.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace millrace::transport::tcp {

namespace {

constexpr std::uint64_t ahead_bytes_first = 8u << 10;
constexpr std::uint64_t ahead_bytes_others = 256;
constexpr std::uint32_t looks_per_stall = 8;
// Bytes of both sides' transfers that may come before an answer, in multiples of what this process
// allows in flight. The peer may allow more.
constexpr std::uint64_t ahead_max = 4;
// Failures to open a stream again, after which transfers stop waiting for it.
constexpr std::uint32_t failures_max = 3;

bool unspecified(const net::socket_address& a) { return a.host() == "0.0.0.0" || a.host() == "::"; }

} // namespace

peer_link::peer_link(
  stream_loops loops, const tcp_options& options, std::shared_ptr<net::channel> c,
  std::vector<std::string> addresses)
  : loops_(std::move(loops)), options_(options), channel_(std::move(c)),
    look_ms_(std::max(options.stall_timeout_ms / looks_per_stall, 1u)) {
  random_bytes(ours_.group.data(), ours_.group.size());
  ours_.addresses = std::move(addresses);
  ours_.by_channel_address = peer().address && !peer().connected_by_us;
  ours_.streams = options_.streams;
  ours_.requests_max = options_.requests_max;
  ours_.chunk_bytes = options_.chunk_bytes / digest_block_bytes * digest_block_bytes;
  ours_.checksum = options_.checksum;
  ours_.encrypt = options_.encrypt;
}

template <class Message>
void peer_link::send(message_kind kind, const Message& m) {
  // Transfers would hang without this message, so the channel is closed if it cannot be sent.
  send_or_close(*channel_, kind, m);
}

template void peer_link::send(message_kind, const lost&);
template void peer_link::send(message_kind, const gone&);

void peer_link::start() {
  send(message_kind::announce, ours_);
  look_later();
}

status peer_link::on_message(std::span<const std::byte> body) {
  return take_message<message_kind>(body, [this](message_kind kind, wire_reader& reader) -> status {
    if (kind == message_kind::announce) {
      announce theirs;
      return reader(theirs) ? on_announce(std::move(theirs)) : status{};
    }
    if (lost gone_there; kind == message_kind::lost) {
      if (reader(gone_there))
        on_lost(gone_there.serial);
    } else if (gone confirmed; kind == message_kind::gone) {
      if (reader(confirmed))
        on_gone(confirmed.serial);
    }
    return {};
  });
}

status peer_link::on_announce(announce theirs) {
  if (
    theirs.addresses.size() > announced_addresses_max || theirs.streams == 0 ||
    theirs.requests_max == 0 || theirs.chunk_bytes < digest_block_bytes)
    return {errc::protocol_error, "an announcement with bounds that cannot be"};
  auto towards = addresses_of(theirs);
  auto they_can = !ours_.addresses.empty() || ours_.by_channel_address;
  std::size_t slots = std::min<std::size_t>(theirs.streams, options_.streams);
  bool open_them = false;
  {
    std::lock_guard guard{mutex_};
    if (announced_)
      return {errc::protocol_error, "announced itself twice"};
    announced_ = true;
    // Both sides come to the same conclusion: the side that connected the channel opens the
    // streams, if it can.
    we_open_ = !towards.empty() && (peer().connected_by_us || !they_can);
    open_them = we_open_;
    key_ = proof_key(*channel_, theirs.group);
    towards_ = towards;
    theirs_ = std::move(theirs);
    slots_.resize(slots);
  }
  if (towards.empty() && !they_can)
    give_up(
      {errc::peer_lost,
       "neither this process nor {} listens for streams: set tcp.listen on one of them",
       peer().name});
  for (std::size_t i = 0; open_them && i < slots; ++i)
    open(i);
  return {};
}

// Returns the addresses that the peer announced, or else the channel's own address.
std::vector<net::socket_address> peer_link::addresses_of(const announce& theirs) const {
  std::vector<net::socket_address> out;
  for (auto& text : theirs.addresses) {
    auto parsed = net::socket_address::parse(text);
    if (parsed && unspecified(*parsed)) {
      auto v6 = parsed->family() == AF_INET6;
      parsed = peer().address
        ? result<net::socket_address>{peer().address->with_port(parsed->port())}
        : net::socket_address::parse(
            fmt::format("{}{}", v6 ? "[::1]:" : "127.0.0.1:", parsed->port()));
    }
    if (parsed)
      out.push_back(*parsed);
  }
  if (out.empty() && theirs.by_channel_address && peer().address && peer().connected_by_us)
    out.push_back(*peer().address);
  return out;
}

void peer_link::open(std::size_t slot) {
  stream_claim as;
  std::vector<net::socket_address> towards;
  net::channel_key key{};
  {
    std::lock_guard guard{mutex_};
    if (closed_ || slots_[slot].s)
      return;
    as.slot = static_cast<std::uint16_t>(slot);
    as.serial = next_serial_++;
    as.group = theirs_.group;
    towards = towards_;
    key = key_;
  }
  open_stream(
    loops_.first, options_, std::move(towards), key, as,
    [weak = weak_from_this(), slot](result<std::shared_ptr<admitted_socket>> opened) {
      auto self = weak.lock();
      if (!self)
        return;
      auto added = opened ? self->add(slot, **opened) : opened.error();
      if (!added.ok())
        self->not_opened(slot, added);
    });
}

// If there never was a stream, transfers fail at once, so that another driver is tried. If a stream
// broke, they wait for some attempts.
void peer_link::not_opened(std::size_t slot, const status& why) {
  log().debug("no stream peer={}: {}", peer().name, why.to_string());
  bool hopeless = false;
  {
    std::lock_guard guard{mutex_};
    auto failures = ++slots_[slot].failures;
    hopeless = (!opened_once_ || failures >= failures_max) &&
      std::none_of(slots_.begin(), slots_.end(), [](auto& s) { return s.s != nullptr; });
  }
  if (hopeless)
    give_up({errc::peer_lost, "no stream to {}: {}", peer().name, why.to_string()});
  open_later(slot, true);
}

void peer_link::open_later(std::size_t slot, bool after_failure) {
  std::uint32_t delay_ms = 0;
  {
    std::lock_guard guard{mutex_};
    auto& backoff_ms = slots_[slot].backoff_ms;
    backoff_ms = after_failure && backoff_ms > 0 ? std::min(2 * backoff_ms, options_.backoff_max_ms)
                                                 : options_.backoff_min_ms;
    delay_ms = backoff_ms;
  }
  loops_.first->run_after(delay_ms, [weak = weak_from_this(), slot] {
    if (auto self = weak.lock())
      self->open(slot);
  });
}

expected_group peer_link::expectation() {
  expected_group out;
  out.key = proof_key(*channel_, ours_.group);
  out.take = [weak = weak_from_this()](std::shared_ptr<admitted_socket> s) {
    auto self = weak.lock();
    return self ? self->accept(*s) : status{errc::peer_lost, "its channel is closed"};
  };
  return out;
}

status peer_link::accept(admitted_socket& s) {
  std::shared_ptr<stream> former;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return {errc::peer_lost, "its channel is closed"};
    // The stream did not follow the order of the channel's frames, and was faster.
    if (!announced_)
      return {errc::busy, "what its peer announces has not come yet"};
    if (we_open_)
      return {errc::protocol_error, "a stream that this side did not ask for"};
    if (s.as.slot >= slots_.size() || s.as.serial == 0)
      return {errc::protocol_error, "a stream of a number that was not agreed on"};
    auto& slot = slots_[s.as.slot];
    if (slot.serial != 0 && slot.serial >= s.as.serial)
      return {errc::busy, "a stream older than the one it would replace"};
    former = slot.s;
    if (slot.serial != 0 && !former)
      return {errc::busy, "the stream it would replace is being closed"};
  }
  if (former) {
    // The peer knows that the former stream has broken. It will connect again after this side has
    // noticed, too.
    former->close({errc::peer_lost, peer().name + " opened another stream in place of this one"});
    return {errc::busy, "the stream it would replace is being closed"};
  }
  return add(s.as.slot, s);
}

status peer_link::add(std::size_t slot_number, admitted_socket& s) {
  stream_limits limits;
  limits.chunk_bytes = ours_.chunk_bytes;
  limits.requests_max = options_.requests_max;
  limits.awaited = slot_number == 0;
  limits.ahead_bytes = slot_number == 0 ? ahead_bytes_first : ahead_bytes_others;
  limits.guest_bytes_max = options_.small_bytes_max;
  auto io = bytes_of(s);
  if (!io)
    return io.error();
  std::shared_ptr<stream> made;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return {errc::peer_lost, why_.detail()};
    limits.checksum = ours_.checksum || theirs_.checksum;
    made = std::make_shared<stream>(
      loops_.of(slot_number), std::move(*io), s.as.serial, peer().name, limits, weak_from_this());
    auto backoff_ms = slots_[slot_number].backoff_ms;
    auto in_flight = std::max(options_.inflight_bytes_max, options_.chunk_bytes);
    slots_[slot_number] = {};
    slots_[slot_number].s = made;
    slots_[slot_number].serial = s.as.serial;
    slots_[slot_number].backoff_ms = backoff_ms;
    slots_[slot_number].watch.emplace(looks_per_stall, ahead_max * in_flight);
    hopeful_ = true;
    opened_once_ = true;
    looks_without_stream_ = 0;
  }
  made->start();
  feed();
  return {};
}

result<std::unique_ptr<bulk_socket>> peer_link::bytes_of(admitted_socket& s) const {
  bool encrypted = false;
  bool connects = false;
  {
    std::lock_guard guard{mutex_};
    encrypted = ours_.encrypt || theirs_.encrypt;
    connects = we_open_;
  }
  if (!encrypted)
    return make_plain_socket(std::move(s.fd));
  return make_encrypted_socket(std::move(s.fd), s.key, connects);
}

bool peer_link::reachable() const {
  std::lock_guard guard{mutex_};
  return !closed_ && hopeful_ && channel_->is_open();
}

void peer_link::look_later() {
  loops_.first->run_after(look_ms_, [weak = weak_from_this()] {
    if (auto self = weak.lock())
      self->look();
  });
}

// Time is counted in looks, so that a pause of this process is not taken for silence of the peer.
void peer_link::look() {
  std::vector<std::shared_ptr<stream>> stalled;
  std::vector<std::unique_ptr<chunk>> unconfirmed;
  bool alone = false;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return;
    for (auto& s : slots_) {
      if (!s.s)
        continue;
      if (s.watch->look(s.s->progress()))
        stalled.push_back(s.s);
    }
    for (auto& [serial, b] : broken_)
      if (++b.looks == looks_per_stall)
        for (auto& c : b.chunks)
          unconfirmed.push_back(std::move(c));
    std::erase_if(broken_, [](auto& b) { return b.second.looks >= looks_per_stall; });
    auto none = std::none_of(slots_.begin(), slots_.end(), [](auto& s) { return s.s != nullptr; });
    looks_without_stream_ = none ? looks_without_stream_ + 1 : 0;
    auto patience_ms = options_.connect_timeout_ms + options_.admission_timeout_ms;
    alone = hopeful_ && !we_open_ && std::uint64_t{looks_without_stream_} * look_ms_ >= patience_ms;
  }
  for (auto& s : stalled)
    s->close(
      {errc::deadline_exceeded,
       "a stream to {} made no progress on its oldest request for {} ms "
       "(tcp.stall_timeout)",
       peer().name, options_.stall_timeout_ms});
  for (auto& c : unconfirmed) {
    auto of = c->of;
    of->end(
      std::move(c),
      {errc::peer_lost, peer().name + " does not confirm that a stream has been closed"});
  }
  if (alone)
    give_up({errc::peer_lost, peer().name + " opened no stream"});
  look_later();
}

} // namespace millrace::transport::tcp
