// Reads the cluster's secret from any text; what is accepted must be written and read alike.
// Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/net/tls/cluster_secret.hpp>

#include <string_view>

using namespace millrace;
using namespace millrace::net::tls;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text{reinterpret_cast<const char*>(data), size};
  auto secret = decode_cluster_secret(text);
  if (!secret) {
    MILLRACE_ASSERT(secret.error().code() == errc::corrupt_data);
    return 0;
  }
  auto again = decode_cluster_secret(encode_cluster_secret(*secret));
  MILLRACE_ASSERT(again && *again == *secret);
  return 0;
}
