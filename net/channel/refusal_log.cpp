// Counting refusals by source, in bounded memory.
#include <millrace/core/log.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/net/channel/refusal_log.hpp>

#include <fmt/core.h>
#include <netinet/in.h>

#include <atomic>
#include <cstring>
#include <mutex>

namespace millrace::net {

namespace {

struct process_table {
  std::atomic<std::uint64_t> total = 0;
  std::mutex mutex;
  refusal_log known;
};

process_table& table() { return one_per_process<process_table>(); }

} // namespace

std::string source_of(const socket_address& from) {
  auto unmapped = without_mapping(from);
  if (unmapped.family() != AF_INET6)
    return unmapped.host();
  sockaddr_in6 v6{};
  std::memcpy(&v6, unmapped.get(), sizeof(v6));
  std::memset(v6.sin6_addr.s6_addr + 8, 0, 8);
  auto network = socket_address::from(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
  return network->host() + "/64";
}

std::optional<std::string> refusal_log::note(
  const std::string& source, const std::string& why, time_point now) {
  bool shared = false;
  auto& e = entry_of(source, now, shared);
  if (e.written != time_point{} && now - e.written < period) {
    ++e.unwritten;
    if (e.other_why.empty() && why != e.why)
      e.other_why = why;
    return std::nullopt;
  }
  auto line = "from=" + source + " why=\"" + why + "\"";
  if (e.unwritten > 0)
    line += fmt::format(" not_written={}", e.unwritten);
  if (!e.other_why.empty() && e.other_why != why)
    line += " among_them=\"" + e.other_why + "\"";
  if (shared)
    line += " (and from other sources, of which there are too many to name)";
  e = {.written = now, .why = why};
  return line;
}

refusal_log::entry& refusal_log::entry_of(const std::string& source, time_point now, bool& shared) {
  auto found = sources_.find(source);
  if (found != sources_.end())
    return found->second;
  if (sources_.size() >= sources_max_)
    forget_old(now);
  shared = sources_.size() >= sources_max_;
  return shared ? others_ : sources_[source];
}

// A pass over all sources takes time, so it runs at most once a second.
void refusal_log::forget_old(time_point now) {
  if (looked_ != time_point{} && now - looked_ < period / 60)
    return;
  looked_ = now;
  std::erase_if(sources_, [&](auto& e) { return now - e.second.written >= period; });
}

void refused(const std::string& source, const status& why, std::string_view address) {
  auto& t = table();
  ++t.total;
  std::optional<std::string> line;
  {
    std::lock_guard guard{t.mutex};
    line = t.known.note(source, why.to_string(), steady_clock::now());
  }
  if (line)
    log().warn(
      "refused a connection {}{}{}{}", address.empty() ? "" : "address=", address,
      address.empty() ? "" : " ", *line);
}

void no_descriptors_left(std::string_view address) {
  refused("everywhere", {errc::no_space, "no descriptors left to accept connections"}, address);
}

std::uint64_t refusals() noexcept { return table().total; }

void forget_refusals() {
  auto& t = table();
  std::lock_guard guard{t.mutex};
  t.known.forget();
}

} // namespace millrace::net
