// Finds actors by number and name.
#include <millrace/actors/services.hpp>
#include <millrace/actors/wire/service_table.hpp>
#include <millrace/core/assert.hpp>

#include <fmt/format.h>

#include <iterator>

namespace millrace::actors {

service_table::service_table() {
  all_services::each([this]<class Service>() { know<Service>(); });
}

service_table::service_entry& service_table::know(
  std::uint16_t first_number, const service_entry& service) {
  auto [at, added] = services_.try_emplace(first_number, service);
  // Two services that share numbers were declared wrongly.
  MILLRACE_ASSERT(added || at->second.name == service.name);
  auto next = std::next(at);
  MILLRACE_ASSERT(next == services_.end() || at->second.end_number <= next->first);
  MILLRACE_ASSERT(at == services_.begin() || std::prev(at)->second.end_number <= first_number);
  return at->second;
}

result<std::shared_ptr<const request_reader>> service_table::reader_of(
  std::uint16_t number, const std::string& target) const {
  std::lock_guard guard{mutex_};
  auto after = services_.upper_bound(number);
  if (after == services_.begin() || std::prev(after)->second.end_number <= number)
    return fail(errc::unsupported, fmt::format("this version knows no request of kind {}", number));
  auto& service = std::prev(after)->second;
  auto found = service.actors.find(target);
  if (auto down = down_.find(target); down != down_.end())
    return fail(down->second);
  if (found == service.actors.end())
    return fail(
      errc::unavailable,
      fmt::format("this node has no provider {} with the service {}", target, service.name));
  return found->second.reader;
}

} // namespace millrace::actors
