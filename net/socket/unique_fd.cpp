// Closing of descriptors.
// Used wherever net and transport own a descriptor.
#include <millrace/net/socket/unique_fd.hpp>

#include <unistd.h>

#include <utility>

namespace millrace::net {

unique_fd& unique_fd::operator=(unique_fd&& other) noexcept {
  unique_fd taken{std::move(other)};
  std::swap(fd_, taken.fd_);
  return *this;
}

unique_fd::~unique_fd() {
  if (fd_ >= 0)
    ::close(fd_);
}

int unique_fd::release() noexcept { return std::exchange(fd_, -1); }

} // namespace millrace::net
