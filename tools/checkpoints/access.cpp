// Chooses between service and pool, and has the functions that both share.
#include <millrace/tools/checkpoints/access.hpp>

#include <algorithm>

namespace millrace::tools {

void add_place_options(CLI::App& command, checkpoint_place& place) {
  // An empty group means every provider that keeps checkpoints.
  place.group.clear();
  add_connection_options(command, place);
  auto* group =
    command.add_option("--group", place.group, "the group of providers that keeps the checkpoints");
  group->type_name("NAME");
  command
    .add_option("--pool", place.pool, "look into this pool, which no service has open, instead")
    ->type_name("PATH")
    ->excludes(group)
    ->excludes(command.get_option("--config"))
    ->excludes(command.get_option("--address"));
}

tl::expected<std::unique_ptr<checkpoint_access>, failure> open_access(
  const checkpoint_place& place) {
  return place.pool.empty() ? open_service_access(place) : open_pool_access(place.pool);
}

bool is_finished(const result<checkpoint_summary>& model, std::uint32_t rank) {
  if (model)
    for (auto& shard : model->shards)
      if (shard.rank == rank)
        return shard.finished;
  return true;
}

} // namespace millrace::tools
