// A model's weights as a plain file, to be compared with others. Written by the phases that train.
#pragma once

#include "mlp.hpp"

#include <millrace/core/status.hpp>

#include <string>

namespace train_digits {

/// The bytes of all tensors, one after the other.
[[nodiscard]] millrace::status write_weights(const std::string& path, mlp& model);

} // namespace train_digits
