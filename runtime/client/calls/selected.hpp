// What requests say of the targets of a load. Internal, used by loads; needs CAF.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/runtime/client/load_target.hpp>

#include <vector>

namespace millrace::runtime {

/// Checks what the targets select.
/// Errors:  `invalid_argument` for a target with rows and a box, or with another number of offsets
///          than dimensions.
[[nodiscard]] status check_targets(const std::vector<load_target>& targets);

/// Returns the targets of whole tensors.
std::vector<load_target> whole(std::vector<tensor_view> views);

/// Moves the views out of the targets.
std::vector<tensor_view> take_views(std::vector<load_target>& targets);

/// Returns the selection of a target whose view has this description.
actors::selection selected(const tensor_desc& desc, const load_target& target);

} // namespace millrace::runtime
