// Reads untrusted NPZ files whole: the zip container, its entries, the table beside them.
#include <millrace/tests/support/fuzzed_zip.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::testing::fuzz_zip(
    millrace::storage::archive::archive_format::npz, {reinterpret_cast<const char*>(data), size});
  return 0;
}
