// The beginning of every phase: the data and a client of the cluster.
// Used by the phases.
#pragma once

#include "dataset.hpp"
#include "phases.hpp"

#include <millrace/runtime/client/client.hpp>

namespace train_digits {

struct phase_setup {
  dataset digits;
  millrace::client client;
};

/// Reads the data and connects.
/// Errors:  those of the configuration, the data file and the client.
millrace::result<phase_setup> set_up(const phase_options& options);

} // namespace train_digits
