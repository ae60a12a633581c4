// The context that the operations of one tensor store share: the objects it was spawned with. Made
// by the tensor store.
#pragma once

#include <millrace/actors/load_operation.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/actors/store/tensor_store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace millrace::actors {

class store_context : public operation_context {
public:
  store_context(caf::actor_system& system, const caf::strong_actor_ptr& self, tensor_store_deps d)
    : operation_context(system, self, d.name, d.fabric, d.limits, d.staging), deps(std::move(d)),
      placement(deps.placement ? *deps.placement : placement_alone(deps.name, deps.group), [this] {
        return now();
      }) {
    in_use = std::move(deps.in_use);
  }

  /// Breaks cycles when the actor ends: the bucket and the placement keep completions that have not
  /// run, and they hold the context.
  void let_go() {
    deps.bucket.reset();
    placement.forget_waiting();
    published = nullptr;
  }

  tensor_store_deps deps;
  placement_keeper placement; // used in the actor
  /// Called in the actor when a version has become visible, also if its store was given up.
  std::function<void(const std::string& model, std::uint64_t version)> published;
};

std::shared_ptr<operation> make_store_operation(
  std::shared_ptr<store_context> context, store_request request, time_point arrived,
  answer<store_receipt> done);

} // namespace millrace::actors
