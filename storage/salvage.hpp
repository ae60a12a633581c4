// Salvage: what is whole in damaged storage that no service has open. Done by kinds of buckets, for
// the command.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/archive/origin.hpp>

#include <memory>
#include <string>

namespace millrace::storage {

/// Takes what a salvage finds.
class salvager {
public:
  virtual ~salvager() = default;

  /// A version of which every byte matches its checksums, or that was stored without any. It has a
  /// step if it is a checkpoint. Errors end the salvage.
  [[nodiscard]] virtual status take(
    const archive::version_origin& origin, std::unique_ptr<archive::tensor_source> source) = 0;

  /// What cannot be read, in words: a version, or a part of the index.
  virtual void lose(const std::string& what) = 0;
};

} // namespace millrace::storage
