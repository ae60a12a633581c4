// Reads the configuration and the data.
// Used by the phases.
#include "setup.hpp"

#include <millrace/runtime/configuration.hpp>

namespace train_digits {

millrace::result<phase_setup> set_up(const phase_options& options) {
  auto settings = millrace::load_configuration(options.config);
  if (!settings)
    return millrace::fail(settings.error());
  auto digits = read_digits(options.data, split_seed);
  if (!digits)
    return millrace::fail(digits.error());
  auto client = millrace::client::of(*settings);
  if (!client)
    return millrace::fail(client.error());
  return phase_setup{std::move(*digits), std::move(*client)};
}

} // namespace train_digits
