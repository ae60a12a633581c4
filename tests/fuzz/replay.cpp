// Runs kept inputs through a fuzzer's entry, for compilers without libFuzzer. Called by CTest.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_bytes);

namespace {

bool replay(const std::filesystem::path& file) {
  std::ifstream in{file, std::ios::binary};
  std::vector<char> bytes{std::istreambuf_iterator<char>{in}, {}};
  if (in.bad() || !in.is_open())
    return false;
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return true;
}

} // namespace

int main(int argc, char** argv) {
  int replayed = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator{argv[i]}) {
      // Named first: a defect ends the process in the entry.
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      if (!replay(entry.path()))
        return 1;
      ++replayed;
    }
  std::printf("%d inputs replayed\n", replayed);
  return replayed > 0 ? 0 : 1;
}
