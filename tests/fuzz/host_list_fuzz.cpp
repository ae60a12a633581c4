// Parses lists of hosts from the environment, and addresses. Run by libFuzzer.
#include <millrace/config/address.hpp>
#include <millrace/config/host_list.hpp>
#include <millrace/core/assert.hpp>

#include <cstddef>
#include <cstdint>

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text{reinterpret_cast<const char*>(data), size};
  if (auto hosts = config::expand_host_list(text)) {
    MILLRACE_ASSERT(!hosts->empty() && hosts->size() <= config::listed_hosts_max);
    for (auto& host : *hosts)
      MILLRACE_ASSERT(config::check_host(host).ok());
  } else {
    MILLRACE_ASSERT(hosts.error().code() == errc::invalid_argument);
  }
  if (config::is_tls_address(text) && config::check_address(text).ok()) {
    auto where = config::parse_tls_address(text);
    MILLRACE_ASSERT(where && config::parse_tls_address(config::to_address(*where)) == *where);
  }
  return 0;
}
