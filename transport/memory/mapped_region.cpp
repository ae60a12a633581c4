// Finds the arena of a region.
#include <millrace/transport/memory/mapped_region.hpp>
#include <millrace/transport/memory/region.hpp>

namespace millrace::transport {

result<mappable_region> find_mappable(
  std::uint64_t number, const region_key& key, access_mode how) {
  auto memory = find_region(number, key, how);
  if (!memory)
    return fail(memory.error());
  if (auto* data = memory->dense())
    if (auto place = find_arena(data, memory->size_bytes());
        place && place->in->mappable() && place->in->sharing() == sharing_for(how))
      return mappable_region{std::move(*place), memory->size_bytes()};
  return fail(errc::unsupported, "the memory behind the handle cannot be mapped");
}

} // namespace millrace::transport
