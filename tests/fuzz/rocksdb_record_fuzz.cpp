// Decodes the values of a RocksDB bucket's index from untrusted bytes. The first byte chooses the
// kind of value. Run by libFuzzer.
#include <millrace/core/assert.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

using namespace millrace;
using namespace millrace::storage;
namespace rdb = millrace::storage::rocksdb;

namespace {

// Takes a record as the engine does: a layout is packed only where its extents have its bytes.
void try_record(std::string_view bytes) {
  auto record = rdb::decode_record("m", bytes);
  if (!record)
    return;
  MILLRACE_ASSERT(*rdb::decode_record("m", rdb::encode_record(*record)) == *record);
  auto checked = check_spec(record->model.spec);
  if (!checked || checked->size_bytes > (64u << 20))
    return;
  auto packed = io::pack(checked->tensor_bytes, record->window_bytes);
  MILLRACE_ASSERT(packed.stream_bytes >= checked->size_bytes);
  MILLRACE_ASSERT(stream_end(packed) <= packed.stream_bytes);
  std::uint64_t sum = 0;
  for (auto& piece : packed.pieces)
    sum += piece.length;
  MILLRACE_ASSERT(sum == checked->size_bytes);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0)
    return 0;
  std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
  switch (data[0]) {
  case 'M':
    try_record(bytes);
    break;
  case 'C':
    if (auto number = rdb::decode_number(bytes, "fuzz"))
      MILLRACE_ASSERT(*rdb::decode_number(rdb::encode_number(*number), "fuzz") == *number);
    break;
  case 'V':
    if (auto stream = rdb::decode_stream(7, bytes))
      MILLRACE_ASSERT(rdb::encode_stream(7, *stream) == bytes);
    break;
  default:
    break;
  }
  return 0;
}
