// A service whose answers the test scripts: now, later, or never.
// Used by tests of clients.
#pragma once

#include <millrace/actors/services.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing {

/// Returns a provider of the directory's default group, with checkpoints or with models alone.
inline provider_entry listed(const std::string& name, bool checkpoints = false) {
  provider_entry p;
  p.name = name;
  p.group = "default";
  p.checkpoints = checkpoints;
  return p;
}

/// A service that answers requests by script. Threads: any; scripts run on the service's I/O loop.
class scripted_service {
public:
  template <class Request>
  using service_of = actors::all_services::service_of<Request>;
  template <class Request>
  struct scripts_of {
    using answer = completion<typename service_of<Request>::template reply_of<Request>>;
    using script = std::function<void(const Request&, answer)>;
    using script_by_provider =
      std::function<void(const std::string& provider, const Request&, answer)>;
  };
  template <class Request>
  using answer = typename scripts_of<Request>::answer;

  /// Its directory lists these providers, all of its only node "n0".
  explicit scripted_service(std::vector<provider_entry> providers) {
    actors::directory where;
    where.node = "n0";
    where.eager_bytes_max = 4096;
    for (auto& p : providers) {
      p.node = where.node;
      p.address = address();
    }
    where.providers = std::move(providers);
    on<actors::directory_request>([where](auto&, auto reply) { reply(where); });
    net::listener_options at;
    at.address = address();
    listener_ = net::listener::open(loop_, at, {.local_name = where.node}, [this](auto&) {
                  return std::make_shared<handler>(scripts_);
                }).value();
  }

  ~scripted_service() { loop_->stop(); }
  scripted_service(const scripted_service&) = delete;
  scripted_service& operator=(const scripted_service&) = delete;

  std::string address() const { return "unix:" + dir_.path() + "/n0.sock"; }

  /// Sets how requests of this kind are answered from now on. Requests without a script are refused
  /// with `unsupported`.
  template <class Request>
  void on(typename scripts_of<Request>::script f) {
    on_for<Request>([f = std::move(f)](const std::string&, const Request& request, auto reply) {
      f(request, std::move(reply));
    });
  }

  /// Does the same for a script that needs to know which provider was asked.
  template <class Request>
  void on_for(typename scripts_of<Request>::script_by_provider f) {
    std::lock_guard guard{scripts_->mutex};
    scripts_->by_number[service_of<Request>::template number_of<Request>()] =
      [f = std::move(f)](
        std::shared_ptr<net::channel> c, std::uint64_t number, const std::string& provider,
        wire_reader& reader) {
        Request request;
        if (reader(request))
          f(provider, request, [c, number](const auto& reply) {
            auto frame =
              reply ? actors::encode_reply(*reply) : actors::encode_refusal(reply.error());
            static_cast<void>(c->send(net::frame_kind::reply, number, frame));
          });
      };
  }

  /// Returns how many requests of this kind have come.
  template <class Request>
  std::size_t asked() const {
    std::lock_guard guard{scripts_->mutex};
    return scripts_->asked[service_of<Request>::template number_of<Request>()];
  }

private:
  using any_script = std::function<void(
    std::shared_ptr<net::channel>, std::uint64_t, const std::string&, wire_reader&)>;
  struct script_table {
    std::mutex mutex;
    std::map<std::uint16_t, any_script> by_number;
    std::map<std::uint16_t, std::size_t> asked;
  };

  class handler : public net::channel_handler {
  public:
    explicit handler(std::shared_ptr<script_table> scripts) : scripts_(std::move(scripts)) {}

    void on_open(const std::shared_ptr<net::channel>&) override {}
    void on_close(net::channel&, const status&) override {}
    void on_frame(net::channel& c, net::frame f) override {
      wire_reader reader{f.body};
      actors::request_head head;
      if (f.kind != net::frame_kind::request || !reader(head))
        return;
      any_script run;
      {
        std::lock_guard guard{scripts_->mutex};
        ++scripts_->asked[head.number];
        if (auto found = scripts_->by_number.find(head.number); found != scripts_->by_number.end())
          run = found->second;
      }
      if (run)
        return run(c.shared_from_this(), f.correlation, head.target, reader);
      static_cast<void>(c.send(
        net::frame_kind::reply, f.correlation,
        actors::encode_refusal({errc::unsupported, "no script"})));
    }

  private:
    std::shared_ptr<script_table> scripts_;
  };

  scratch_directory dir_;
  std::shared_ptr<net::io_loop> loop_ = net::io_loop::start({}).value();
  std::shared_ptr<script_table> scripts_ = std::make_shared<script_table>();
  std::shared_ptr<net::listener> listener_;
};

} // namespace millrace::testing
