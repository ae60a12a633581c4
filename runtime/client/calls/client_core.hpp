// The state that one client's facades share: where the providers are and how to ask them.
// Internal, behind `client`, `repository` and `checkpoints`; needs CAF.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/actors/wire/remote_node.hpp>
#include <millrace/runtime/client/calls/layer_cache.hpp>
#include <millrace/runtime/node/engine.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Returns every provider that a configuration describes. `node` of the result is the node picked,
/// if any.
actors::directory directory_of(const config::settings& settings);

/// The actors of a node in this process.
struct local_actors {
  std::map<std::string, actors::tensor_store_actor> stores;
  std::map<std::string, actors::local_checkpoint_manager> checkpoints;
  actors::node_actor node;
};

/// Threads: any.
class client_core : public std::enable_shared_from_this<client_core> {
public:
  /// Makes a client of the node in this process, whose stores it asks directly.
  static std::shared_ptr<client_core> of_node(
    std::shared_ptr<engine> e, actors::directory where, const local_actors& local);

  /// Makes a client of other processes. `where.providers` may be empty; `fetch_directory` then
  /// fills it.
  static std::shared_ptr<client_core> of_cluster(
    std::shared_ptr<engine> e, actors::directory where, const std::string& address);

  ~client_core();

  /// Asks the node at the first address for the directory. For clients made from an address alone.
  void fetch_directory(completion<void> done);

  const actors::directory& where() const noexcept { return where_; }
  const std::shared_ptr<engine>& runs_on() const noexcept { return engine_; }
  layer_cache& layers() noexcept { return layers_; }
  told_layers& told(std::size_t provider) { return *told_[provider]; }

  /// Makes a promise whose waiters help with the I/O.
  template <class T>
  promise<T> make_promise() const {
    return promise<T>{engine_->loop()};
  }

  /// Sends a request to a typed actor, in this process or another. Threads: any.
  template <class Handle, class Request, class Reply>
  void ask(const Handle& target, Request request, completion<Reply> done);

  /// Returns the store of provider number `index`. Its proxy is made at first use.
  actors::tensor_store_actor store(std::size_t index);
  /// Returns the checkpoint manager of provider number `index`, which must keep checkpoints.
  actors::checkpoint_manager_actor checkpoints(std::size_t index);
  /// Returns the actor of a node of the directory, by the node's name.
  actors::node_actor node(const std::string& name);

  /// Returns `model_graph::chain_of(tensors)`. When a name is stored with the same tensors as last
  /// time, it returns the same graph again, already hashed.
  std::shared_ptr<const model_graph> chain_for(const std::string& model, const layout& tensors);

  /// Returns the client's own staging memory, made at first use.
  result<std::shared_ptr<memory_source>> staging();

private:
  explicit client_core(std::shared_ptr<engine> e, actors::directory where);
  std::shared_ptr<actors::remote_node> remote(const std::string& node);
  void learn(actors::directory where);
  void prepare_tables();
  std::uint32_t timeout_ms() const;

  std::shared_ptr<engine> engine_;
  actors::directory where_;
  std::string first_address_;
  caf::strong_actor_ptr caller_;
  layer_cache layers_;
  std::vector<std::unique_ptr<told_layers>> told_;
  std::mutex mutex_;
  std::vector<actors::tensor_store_actor> stores_;
  std::vector<actors::checkpoint_manager_actor> checkpoints_;
  std::map<std::string, actors::node_actor> nodes_;
  std::map<std::string, std::shared_ptr<actors::remote_node>> remotes_;
  std::vector<caf::strong_actor_ptr> proxies_;
  std::shared_ptr<memory_source> staging_;
  std::map<std::string, std::pair<layout, std::shared_ptr<const model_graph>>> chains_;
};

} // namespace millrace::runtime
