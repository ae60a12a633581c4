// A client of data servers in a process of its own, for tests that kill it:
// data_peer CONFIG read|hold|train|produce|consume NAME [FILE [RANK STATE]].
// `read` opens a set with its file and reads all of it again and again; `hold` preloads it before,
// as long as it is used. `train` is a rank of a job of two that reads a folder through a window, on
// from a state. `produce` and `consume` are the two ends of a stream.
#include <millrace/tests/system/connecting.hpp>
#include <millrace/tests/system/data_processes.hpp>

#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;

namespace {

struct task {
  client connection;
  std::string name;
  std::string file;
  std::string rank;
  std::string state;
};

int read(task& t) {
  auto reader = t.connection.working_set(t.name).open({{}, {t.file}}).get();
  for (;;) {
    if (auto bad = testing::read_all(reader); !bad.ok())
      throw error{bad};
    std::cout << "read, " << reader.samples_from_files() << " from files" << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
}

int hold(task& t) {
  preload_options how;
  how.while_used = true;
  how.servers = 0;
  t.connection.working_set(t.name).preload({t.file}, how).get();
  return read(t);
}

status check_files(const batch& b) {
  auto offsets = b.offsets(0);
  for (std::size_t i = 0; i < b.ids().size(); ++i)
    if (!testing::is_file(
          {b.field(0).data + offsets[i], b.field(0).data + offsets[i + 1]}, b.ids()[i]))
      return {errc::corrupt_data, "sample {} has other bytes", b.ids()[i]};
  return {};
}

// Prints each batch, and where the training is after it.
int train(task& t) {
  auto set = t.connection.working_set(t.name);
  set.preload({t.file}, testing::in_window()).get();
  auto reader = set.open().get();
  auto options = testing::of_rank(std::stoul(t.rank));
  auto from = reader.load_batches(options).value();
  auto bad = t.state.empty() ? status{} : from.seek(loader_state::parse(t.state).value());
  while (bad.ok()) {
    auto got = from.next().get();
    if (got)
      bad = check_files(*got);
    std::cout << from.state().to_json() << ' ' << reader.samples_from_window();
    for (auto id : got ? got->ids() : std::span<const std::uint64_t>{})
      std::cout << ' ' << id;
    std::cout << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  throw error{bad};
}

int produce(task& t) {
  stream_options made;
  made.fields = {{"x", dtype::u8, {testing::sample_bytes}}};
  made.capacity = 64;
  made.when_full = full_policy::drop_oldest;
  auto to = t.connection.stream(t.name);
  to.create(made).get();
  auto producer = to.producer().get();
  std::vector<std::uint8_t> x(testing::sample_bytes);
  for (;;) {
    producer.append({tensor_view::dense("x", dtype::u8, {x.size()}, std::span{x})}).get();
    std::cout << "appended" << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

int consume(task& t) {
  auto reader = t.connection.stream(t.name).reader({.batch_size = 8}).get();
  while (auto batch = reader.next().get())
    std::cout << "got " << batch->ids().size() << std::endl;
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words{argv + 1, argv + argc};
  words.resize(6);
  try {
    task t{testing::connect_to(words[0]), words[2], words[3], words[4], words[5]};
    return words[1] == "read" ? read(t)
      : words[1] == "hold"    ? hold(t)
      : words[1] == "train"   ? train(t)
      : words[1] == "produce" ? produce(t)
      : words[1] == "consume" ? consume(t)
                              : 2;
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return 1;
  }
}
