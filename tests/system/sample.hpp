// Models whose bytes follow from a seed, so that two processes agree on them without a word.
#pragma once

#include <millrace/core/tensor_view.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace millrace::testing {

/// `layers` tensors "layer<i>.weight" of F32[rows, 1024], that is 4 KiB a row.
struct sample {
  static constexpr std::uint64_t row_bytes = 4096;

  std::vector<std::vector<std::byte>> bytes;
  std::vector<tensor_view> views;

  sample(std::size_t layers, std::uint64_t rows) {
    for (std::size_t i = 0; i < layers; ++i) {
      auto& b = bytes.emplace_back(rows * row_bytes);
      tensor_desc desc{"layer" + std::to_string(i) + ".weight", dtype::f32, {rows, 1024}};
      views.push_back({std::move(desc), b.data(), {}});
    }
  }

  // The views point into the bytes.
  sample(sample&&) = default;
  sample& operator=(sample&&) = default;

  /// One model of so many MiB, in four layers.
  static sample of_mib(std::uint64_t mib) { return {4, mib * 64}; }

  sample fill(std::uint64_t seed) && {
    for (auto& b : bytes)
      for (std::size_t at = 0; at < b.size(); at += 8) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::memcpy(b.data() + at, &seed, 8);
      }
    return std::move(*this);
  }

  std::uint64_t size_bytes() const { return bytes.size() * bytes.front().size(); }
};

} // namespace millrace::testing
