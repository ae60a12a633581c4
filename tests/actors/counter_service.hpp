// A whole service, as docs/adding-a-service.md makes it: counters with names. Nothing else in the
// tree knows of it.
#pragma once

#include <millrace/actors/provider_actor.hpp>
#include <millrace/core/bulk_handle.hpp>

#include <map>
#include <string>

namespace millrace::testing {

struct count_request {
  std::string counter;
  std::uint64_t by = 1;
  actors::asker from = {};
};
MILLRACE_INSPECT(count_request, x.counter, x.by)

struct count_reply {
  std::uint64_t total = 0;
};
MILLRACE_INSPECT(count_reply, x.total)

/// Says what it is sent, and how many bytes are behind the handle.
struct echo_request {
  std::string text;
  std::vector<bulk_handle> memory;
};
MILLRACE_INSPECT(echo_request, x.text, x.memory)

struct echo_reply {
  std::string text;
  std::uint64_t size_bytes = 0;
};
MILLRACE_INSPECT(echo_reply, x.text, x.size_bytes)

/// Counters that last as long as the connection or the client that made them.
struct counter_service
  : actors::service<
      "counters", 896,
      // Errors: invalid_argument for a counter without a name.
      actors::method<count_request, count_reply>, actors::method<echo_request, echo_reply>> {};

using counter_actor = actors::actor_of<counter_service>::extend<
  caf::replies_to<actors::provider_status_request>::with<provider_status>>;

class counters : public actors::provider_actor<counter_actor> {
public:
  using provider_actor::provider_actor;

  const char* name() const override { return "counters"; }

  behavior_type make_behavior() override {
    using self = counters;
    return handlers(&self::count, &self::echo, &self::report);
  }

protected:
  void ended(const caf::actor_addr& asker, const status&) override { totals_.erase(asker); }

private:
  caf::result<count_reply> count(const count_request& request) {
    if (request.counter.empty())
      return caf::make_error(errc::invalid_argument, std::string{"a counter without a name"});
    auto& counters = totals_[watch_asker()][request.from];
    return count_reply{counters[request.counter] += request.by};
  }

  echo_reply echo(echo_request& request) {
    std::uint64_t bytes = 0;
    for (auto& handle : request.memory)
      bytes += size_bytes(handle);
    return {std::move(request.text), bytes};
  }

  provider_status report(const actors::provider_status_request&) {
    auto status = common_status();
    status.kind = "counters";
    status.used_bytes = totals_.size();
    return status;
  }

  using counters_of = std::map<actors::asker, std::map<std::string, std::uint64_t>>;
  std::map<caf::actor_addr, counters_of> totals_; // by the actor that asked
};

} // namespace millrace::testing
