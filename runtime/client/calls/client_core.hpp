// The state that one client's facades share: where the providers are and how to ask them.
// Internal, behind `client`, `repository` and `checkpoints`; needs CAF.
#pragma once

#include <millrace/actors/caller.hpp>
#include <millrace/actors/node/node_messages.hpp>
#include <millrace/actors/wire/ask_remote.hpp>
#include <millrace/actors/wire/service_table.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/placement.hpp>
#include <millrace/runtime/client/calls/known_models.hpp>
#include <millrace/runtime/client/calls/layer_cache.hpp>
#include <millrace/runtime/client/calls/parked_watches.hpp>
#include <millrace/runtime/client/calls/remote_reads.hpp>
#include <millrace/runtime/client/working_set.hpp>
#include <millrace/runtime/node/engine.hpp>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// Returns every provider that a configuration describes. `node` of the result is the node picked,
/// if any.
actors::directory directory_of(const config::settings& settings);

/// What one client's facades share. Threads: any.
///
/// Whoever makes one holds it for the program: when the program drops the last such reference, the
/// calls that wait for news end with `cancelled`. References from `shared_from_this` do not count.
class client_core : public std::enable_shared_from_this<client_core> {
public:
  /// Makes a client of the node in this process. It asks the node's actors directly.
  static std::shared_ptr<client_core> of_node(
    std::shared_ptr<engine> e, actors::directory where,
    std::shared_ptr<const actors::service_table> here);

  /// Makes a client of other processes. `where.providers` may be empty; `fetch_directory` then
  /// fills it.
  static std::shared_ptr<client_core> of_cluster(
    std::shared_ptr<engine> e, actors::directory where, const std::string& address);

  ~client_core();

  /// Asks the node at the first address for the directory. For clients made from an address alone.
  /// While the node there is starting, it is asked again, for `client.connect_timeout` in all.
  void fetch_directory(completion<void> done);

  const actors::directory& where() const noexcept { return where_; }
  const std::shared_ptr<engine>& runs_on() const noexcept { return engine_; }

  /// Returns the error of every call in a forked child, and none in the process that has the
  /// client's threads. A call asks before it takes a lock: nobody may be left to free it.
  /// Errors:  `unavailable` naming that process.
  status refusal() const;
  /// Returns the future of a call that is refused so.
  template <class T>
  std::optional<future<T>> refused() const {
    if (auto why = refusal(); !why.ok())
      return ready_future<T>(fail(std::move(why)));
    return std::nullopt;
  }
  /// Returns also that of a call with a name that no model can have.
  template <class T>
  std::optional<future<T>> refused(std::string_view model) const {
    if (auto here = refused<T>())
      return here;
    if (auto bad = validate_model_name(model); !bad.ok())
      return ready_future<T>(fail(std::move(bad)));
    return std::nullopt;
  }

  layer_cache& layers() noexcept { return layers_; }
  known_models& models() noexcept { return models_; }
  told_layers& told(std::size_t provider);

  /// Returns provider number `provider`: one of the directory, or one that `number_of` has added.
  const provider_entry& entry(std::size_t provider);
  /// Returns the number of a provider that a view or a node names. One that a node has said to have
  /// under another name now is that one.
  std::size_t number_of(const group_member& member, const std::string& group);
  std::size_t number_of(const provider_entry& entry);

  /// Returns the timeout asked for, or the client's request timeout; at most what a message can
  /// hold.
  std::uint32_t timeout_ms(std::chrono::milliseconds wanted = {}) const;
  /// Returns when an operation ends that begins now and has this time; 0: the request timeout.
  time_point deadline_after(std::chrono::milliseconds timeout = {}) const;
  /// Returns when such an operation stops looking for providers: half of its time is left for those
  /// that it has found.
  time_point search_deadline_after(std::chrono::milliseconds timeout = {}) const;
  /// Runs `work` in the actor that also runs the completions of `ask`.
  void run(std::function<void()> work);
  /// Runs `work` then, in that actor.
  void at(time_point when, std::function<void()> work);

  /// Returns how long to wait for one whose answer others can do without.
  std::uint32_t connect_timeout_ms() const;

  /// Asks some nodes which providers there are: their files may be newer than this client's. The
  /// result has the answers that come by `until`, or within `client.connect_timeout`; at least one:
  /// if no node answers, what this client's file lists.
  void ask_nodes(
    const std::set<std::string>& names, time_point until,
    completion<std::vector<actors::directory>> done);

  /// Remembers the newest view of a group. Later names are placed by it.
  void learn_view(const std::string& group, const group_view& view);
  /// Returns the view that was remembered; without a number if there is none.
  group_view known_view(const std::string& group);
  /// Returns the provider at which a name is placed, as far as this client knows. For a group that
  /// no provider is in, it is any provider: that one cannot answer alone.
  /// Errors:  as `place`, if there is no provider.
  result<std::size_t> place_now(const std::string& model, const std::string& group);
  /// The same for what is stored: a group that no provider is in can be read and erased, not added
  /// to.
  /// Errors:  as `place`.
  result<std::size_t> place_new(const std::string& model, const std::string& group);

  /// Returns this client's watches at provider number `provider`, for use in the client's actor.
  parked_watches& watches_at(watched what, std::size_t provider);

  /// Keeps what ends a call when the program has dropped the client; it runs in the client's actor.
  /// Returns the number by which it is forgotten. Calls of this kind hold the client meanwhile, so
  /// they must not hold the program's reference.
  std::uint64_t when_closed(std::function<void()> end);
  void forget_closing(std::uint64_t number);

  /// Makes a promise whose waiters help with the I/O.
  template <class T>
  promise<T> make_promise() const {
    return promise<T>{engine_->loop()};
  }

  /// Makes what this client copies urgent, until the returned pointer is gone.
  std::shared_ptr<void> hurry() const { return engine_->fabric()->movers()->hurry(); }

  /// Asks the actor of a service at provider number `provider`, here or elsewhere, from any thread.
  /// The request is copied only for an actor of this process.
  template <class Service, class Request>
  void ask(
    std::size_t provider, Request&& request,
    completion<typename Service::template reply_of<std::decay_t<Request>>> done) {
    auto [at, via] = way_to(provider);
    ask_at<Service>(at.node, at.name, std::forward<Request>(request), std::move(done), via);
  }
  template <
    class Service, class Request, class Reply = typename Service::template reply_of<Request>>
  future<Reply> ask(std::size_t provider, Request request) {
    auto done = make_promise<Reply>();
    ask<Service>(provider, std::move(request), kept_until(done));
    return done.get_future();
  }

  /// Returns true if a request to the provider leaves on the thread that asks: its node is another
  /// process, to which there is a connection.
  bool sends_at_once(std::size_t provider);

  /// Asks for what is needed by a deadline. A provider is not asked when that is over.
  /// Errors:  `deadline_exceeded`.
  template <class Service, class Request>
  void ask_until(
    time_point deadline, std::size_t provider, Request request,
    completion<typename Service::template reply_of<Request>> done) {
    ask_keeping<Service>(deadline, provider, request, std::move(done));
  }
  /// The same for a request that the caller keeps, perhaps to ask again. It gets its timeout here.
  template <class Service, class Request>
  void ask_keeping(
    time_point deadline, std::size_t provider, Request& request,
    completion<typename Service::template reply_of<Request>> done) {
    request.timeout_ms = left_ms(deadline);
    if (request.timeout_ms == 0)
      return done(fail(
        errc::deadline_exceeded, "the time was over before provider {} was asked",
        entry(provider).name));
    ask<Service>(provider, request, std::move(done));
  }
  template <
    class Service, class Request, class Reply = typename Service::template reply_of<Request>>
  future<Reply> ask_until(time_point deadline, std::size_t provider, Request request) {
    auto done = make_promise<Reply>();
    ask_until<Service>(deadline, provider, std::move(request), kept_until(done));
    return done.get_future();
  }

  /// Asks a node of the directory, by its name; the node itself, or another target there.
  template <
    class Service = actors::node_service, class Request,
    class Reply = typename Service::template reply_of<Request>>
  future<Reply> ask_node(
    const std::string& name, Request request, std::string_view target = actors::node_itself) {
    auto done = make_promise<Reply>();
    ask_at<Service>(name, std::string{target}, std::move(request), kept_until(done));
    return done.get_future();
  }

  /// Returns `model_graph::chain_of(tensors)`. When a name is stored with the same tensors as last
  /// time, it returns the same graph again, already hashed.
  std::shared_ptr<const model_graph> chain_for(const std::string& model, const layout& tensors);

  /// Returns the client's own staging memory. The first call begins to make it, on a thread of its
  /// own; until that has ended, or if it fails, the result is null.
  std::shared_ptr<memory_source> staging();
  /// Remembers from which files, and how, this client has preloaded a window: of the last 1,024
  /// windows, until it unloads them.
  void remember_window(const std::string& set, open_options files);
  void forget_window(const std::string& set);
  /// Returns them; none for a set that it has not preloaded so.
  open_options window_files(const std::string& set);
  /// Returns what reads the working sets of other hosts.
  const std::shared_ptr<remote_reads>& reads() const noexcept { return reads_; }

private:
  explicit client_core(std::shared_ptr<engine> e, actors::directory where);

  // Returns the program's reference.
  static std::shared_ptr<client_core> opened(std::shared_ptr<client_core> core);
  void close();

  // A provider, and what this client has for it.
  struct known_provider {
    known_provider(provider_entry e, std::size_t layers_max)
      : entry(std::move(e)), told(layers_max) {}

    provider_entry entry;
    told_layers told;
    std::shared_ptr<actors::remote_node> via; // null until it is asked
  };

  // `via`: null if the provider is one of the node in this process.
  struct way {
    const provider_entry& entry;
    std::shared_ptr<actors::remote_node> via;
  };

  void fetch_directory(time_point deadline, completion<void> done);
  static std::uint32_t left_ms(time_point deadline);
  void make_staging();

  // The client lives until it has the answer.
  template <class Reply>
  completion<Reply> kept_until(const promise<Reply>& done) {
    return [self = shared_from_this(), done](result<Reply> r) { done.set(std::move(r)); };
  }

  // All completions run in the caller, one at a time. `via`: null if it is to be found by the name.
  template <
    class Service, class Request,
    class Reply = typename Service::template reply_of<std::decay_t<Request>>>
  void ask_at(
    const std::string& node, const std::string& target, Request&& request, completion<Reply> done,
    const std::shared_ptr<actors::remote_node>& via = nullptr) {
    // The node may replace its actor. A node that fails to start stops before it has made all its
    // providers.
    if (is_here(node))
      if (auto own = here_->find<Service>(target))
        return actors::ask_as(
          engine_->system(), caller_, own, std::decay_t<Request>(std::forward<Request>(request)),
          std::move(done));
    actors::ask_remote<Service>(
      *(via ? via : remote(node)), target, std::as_const(request), timeout_ms(),
      [&system = engine_->system(), caller = caller_,
       done = std::move(done)](result<Reply> outcome) mutable {
        actors::finish_in(system, caller, std::move(done), std::move(outcome));
      });
  }

  bool is_here(const std::string& node) const { return here_ && node == where_.node; }
  std::shared_ptr<actors::remote_node> remote(const std::string& node);
  std::shared_ptr<actors::remote_node> remote_of(const std::string& node);
  way way_to(std::size_t provider);
  void learn(actors::directory where);
  void prepare_tables();
  std::optional<std::size_t> known_number(const std::string& name, const std::string& node) const;
  std::size_t add(provider_entry entry);
  void learn_ids(const std::vector<actors::directory>& answers);
  node_entry node_called(const std::string& node) const;
  std::shared_ptr<engine> engine_;
  actors::directory where_;
  std::string first_address_;
  caf::strong_actor_ptr caller_;
  layer_cache layers_;
  known_models models_;
  std::deque<known_provider> known_;         // they stay where they are
  std::map<std::string, std::size_t> found_; // by id, as nodes say of their own providers
  std::map<std::string, group_view> views_;  // newest of each group
  std::deque<std::pair<std::string, open_options>> windows_; // files of those that were preloaded
  std::mutex mutex_;
  std::shared_ptr<const actors::service_table> here_; // null: all actors are in other processes
  std::map<std::string, std::shared_ptr<actors::remote_node>> remotes_;
  std::shared_ptr<memory_source> staging_;
  const std::shared_ptr<remote_reads> reads_;
  std::thread makes_staging_;
  std::map<std::string, std::pair<layout, std::shared_ptr<const model_graph>>> chains_;
  std::map<std::pair<watched, std::size_t>, parked_watches> watches_; // in the caller only
  std::map<std::uint64_t, std::function<void()>> ends_when_closed_;
  std::uint64_t last_end_ = 0;
};

} // namespace millrace::runtime
