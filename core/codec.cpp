// The parts of the wire codec that do not depend on a type. Called by every encoding and decoding.
#include <millrace/core/codec.hpp>

#include <cstring>

namespace millrace {

void wire_writer::raw(const void* data, std::size_t size_bytes) {
  auto first = static_cast<const std::byte*>(data);
  out_.insert(out_.end(), first, first + size_bytes);
}

void wire_writer::varint(std::uint64_t value) {
  while (value >= 0x80) {
    out_.push_back(static_cast<std::byte>(value | 0x80));
    value >>= 7;
  }
  out_.push_back(static_cast<std::byte>(value));
}

void wire_writer::put_struct_length(std::size_t at) {
  auto length = out_.size() - at - 4;
  for (int i = 0; i < 4; ++i)
    out_[at + i] = static_cast<std::byte>(length >> (8 * i));
}

bool wire_reader::raw(void* data, std::size_t size_bytes) {
  if (!ok())
    return false;
  if (size_bytes > static_cast<std::size_t>(end_ - at_)) {
    stumble("cut short");
    return false;
  }
  if (size_bytes > 0)
    std::memcpy(data, at_, size_bytes);
  at_ += size_bytes;
  return true;
}

bool wire_reader::varint(std::uint64_t& value) {
  if (!ok())
    return false;
  std::uint64_t out = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ == end_) {
      stumble("cut short");
      return false;
    }
    auto byte = static_cast<std::uint64_t>(*at_++);
    if (shift == 63 && byte > 1)
      break;
    out |= (byte & 0x7f) << shift;
    if (byte < 0x80) {
      value = out;
      return true;
    }
  }
  stumble("a number longer than 64 bits");
  return false;
}

void wire_reader::get(std::string& x) {
  std::uint64_t length = 0;
  if (!varint(length))
    return;
  if (length > static_cast<std::uint64_t>(end_ - at_))
    return stumble("a text longer than the bytes that follow");
  if (!charge(length))
    return;
  x.assign(reinterpret_cast<const char*>(at_), length);
  at_ += length;
}

bool wire_reader::charge(std::uint64_t size_bytes) {
  if (size_bytes > budget_) {
    over_budget_ = ok();
    stumble("decodes to more memory than allowed");
    return false;
  }
  budget_ -= size_bytes;
  return true;
}

} // namespace millrace
