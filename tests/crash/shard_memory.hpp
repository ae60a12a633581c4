// The tensors of one rank in the processes that crash tests kill. Their bytes follow from the step.
#pragma once

#include "small_checkpoints.hpp"

#include <millrace/core/tensor_view.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace millrace::testing {

class shard_memory {
public:
  shard_memory(const std::string& model, std::uint32_t rank, std::uint32_t world_size)
    : spec_(small_shard(model, rank, world_size)) {
    for (auto& t : spec_.tensors.tensors)
      bytes_.emplace_back(std::max<std::uint64_t>(t.shape.at(0), 1));
  }

  std::vector<tensor_view> views() {
    std::vector<tensor_view> all;
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      all.push_back({spec_.tensors.tensors[i], bytes_[i].data(), {}});
    return all;
  }
  void set(std::uint64_t step) {
    for (std::uint32_t i = 0; i < bytes_.size(); ++i)
      fill(bytes_[i].data(), length(i), seed(step), i, 0);
  }
  bool holds(std::uint64_t step) const {
    for (std::uint32_t i = 0; i < bytes_.size(); ++i)
      if (!is_filled(bytes_[i].data(), length(i), seed(step), i, 0))
        return false;
    return true;
  }

private:
  std::uint64_t length(std::uint32_t i) const { return spec_.tensors.tensors[i].shape.at(0); }
  std::uint64_t seed(std::uint64_t step) const {
    return content_seed(spec_.model, spec_.rank, step);
  }

  shard_spec spec_;
  std::vector<std::vector<std::byte>> bytes_;
};

} // namespace millrace::testing
