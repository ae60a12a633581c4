// Writes a model's weights to a plain file, for comparison.
// Used by the phases that train.
#pragma once

#include "mlp.hpp"

#include <millrace/core/status.hpp>

#include <string>

namespace train_digits {

/// Writes the bytes of all tensors, one after the other.
[[nodiscard]] millrace::status write_weights(const std::string& path, mlp& model);

} // namespace train_digits
