// A node in this process keeps a working set: the program preloads an array, and two ranks read the
// batches of an epoch. Call: read_batches [FILE.npy]
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

// Writes 1,000 samples of 64 numbers, as numpy.save does.
std::string make_array(const std::string& path) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000, 64), }";
  header.resize(117, ' ');
  std::vector<float> values(1000 * 64);
  std::iota(values.begin(), values.end(), 0.0F);
  std::ofstream file{path, std::ios::binary};
  file.write("\x93NUMPY\x01\x00\x76\x00", 10) << header << '\n'; // 0x76: 117 characters and one
  file.write(
    reinterpret_cast<const char*>(values.data()),
    static_cast<std::streamsize>(values.size() * sizeof(float)));
  return path;
}

// Returns the sum of all bytes that a rank reads in one epoch.
std::uint64_t read_epoch(
  const millrace::set_reader& reader, std::uint64_t rank, std::uint64_t world_size) {
  millrace::loader_options options;
  options.batch_size = 32;
  options.rank = rank;
  options.world_size = world_size;
  options.seed = 7;
  auto loader = reader.load_batches(options).value();
  std::uint64_t sum = 0;
  while (auto batch = loader.next().get()) { // none: the end of an epoch
    auto x = batch->field(0);                // [rows, 64]; valid while `batch` is
    auto* bytes = reinterpret_cast<const unsigned char*>(x.data);
    sum = std::accumulate(bytes, bytes + batch->rows() * reader.info().fields[0].bytes, sum);
    // ... a training step ...; loader.state().to_json() is all that a resume needs
  }
  return sum;
}

bool preload_and_read(const millrace::client& client, const std::string& path) {
  auto set = client.working_set("digits");
  auto info = set.preload({path}).get().set; // at once where the same files are there already
  std::cout << "preloaded " << info.samples << " samples of " << info.fields[0].bytes << " bytes\n";
  auto reader = set.open().get(); // maps the memory; from here on no message is sent
  auto both = read_epoch(reader, 0, 2) + read_epoch(reader, 1, 2);
  auto alone = read_epoch(reader, 0, 1);
  std::cout << "two ranks have read " << both << ", one has read " << alone << "\n";
  set.unload().get();
  return both == alone;
}

int main(int argc, char** argv) {
  auto directory = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  if (!mkdtemp(directory.data()))
    return 1;
  bool same = false;
  try {
    auto yaml = "{node: {listen: 'unix:" + directory +
      "/n0.sock'}, data: {capacity: 64MiB, region_size: 16MiB}, "
      "providers: [{name: fast, capacity: 16MiB}]}";
    auto node = millrace::node::embed(millrace::parse_configuration(yaml, "read_batches").value());
    auto path = argc > 1 ? std::string{argv[1]} : make_array(directory + "/digits.npy");
    same = preload_and_read(node.client(), path);
  } catch (const std::exception& why) {
    std::cerr << "read_batches: " << why.what() << "\n";
  }
  std::filesystem::remove_all(directory);
  return same ? 0 : 1;
}
