// Compute is a sleep, so that it takes as long whatever else the cores do.
#include <millrace/bench/loader/loading.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

namespace millrace::bench {

namespace {

constexpr std::size_t ahead = 4; // batches of a client that are under way, as of loaders

loader_options options_of(const taking& how, std::size_t rank, std::size_t ranks) {
  loader_options out;
  out.batch_size = how.batch;
  out.rank = rank;
  out.world_size = ranks;
  out.seed = 1;
  out.remainder = remainder_kind::drop;
  out.fields = {"x"};
  out.prefetch = how.prefetch;
  return out;
}

// What Python is to do: "memmap-2@0.1" takes from a memory map by two workers, and computes 0.1 s.
std::string command(const std::string& way, const taking& how) {
  return fmt::format("{}@{}", way, how.compute_s);
}

} // namespace

void taking::compute() const {
  if (compute_s > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>{compute_s});
}

batch_reader::batch_reader(client of, const sample_files& files)
  : of_(files), client_(std::move(of)), reader_(client_.working_set(files.name()).open().get()) {
  for (std::size_t i = 0; i < few_plans; ++i)
    batches_.push_back(random_ids(batch_size, of_.samples(), i));
  for (std::size_t i = 0; i < ahead; ++i)
    buffers_.push_back(std::make_unique<warm_buffer>(of_.batch_bytes(batch_size)));
  read(ahead);
  check();
}

void batch_reader::read(std::size_t batches) {
  std::deque<future<void>> running;
  for (std::size_t i = 0; i < batches; ++i) {
    if (running.size() == ahead) {
      running.front().get();
      running.pop_front();
    }
    running.push_back(
      reader_.read_batch(0, batches_[i % batches_.size()], buffers_[i % ahead]->bytes()));
  }
  for (auto& last : running)
    last.get();
}

void batch_reader::check() const {
  for (std::size_t b = 0; b < ahead; ++b)
    for (std::size_t i = 0; i < batch_size; ++i) {
      auto* read = buffers_[b]->bytes().data() + i * of_.sample_bytes();
      if (!std::ranges::equal(std::span{read, of_.sample_bytes()}, of_[batches_[b][i]]))
        give_up(fmt::format("a sample of {} has other bytes than the file", of_.name()));
    }
}

row against_large_read(
  std::string name, const sample_files& files, client reads, client alone, std::size_t batches,
  std::size_t rounds) {
  batch_reader some{std::move(reads), files}, all{std::move(alone), files};
  warm_buffer whole{files.size_bytes()};
  contest both;
  auto& ours = both.add([&] { return seconds_of([&] { some.read(batches); }); });
  auto& large = both.add([&] { return seconds_of([&] { all.load(whole); }); });
  both.run(rounds);
  row r;
  r.name = std::move(name);
  r.size_bytes = files.batch_bytes(batch_size);
  for (auto seconds : ours.values())
    r.ours.add(seconds / static_cast<double>(batches));
  r.peer = "large read";
  r.peer_s =
    large.median() * static_cast<double>(r.size_bytes) / static_cast<double>(files.size_bytes());
  return r;
}

training::training(
  const data_service& at, const sample_files& of, const taking& how, std::size_t ranks,
  const open_options& files)
  : of_(of), how_(how) {
  for (std::size_t i = 0; i < ranks; ++i) {
    auto c = at.connect();
    auto reader = c.working_set(of.name()).open(files).get();
    auto made = need(reader.load_batches(options_of(how, i, ranks)), "making a loader");
    ranks_.push_back(std::make_unique<rank>(rank{std::move(c), std::move(made)}));
    if (auto first = next(*ranks_.back()))
      check(*first);
  }
}

// What was read ahead in the meantime is no work of this measure.
double training::take(std::size_t batches) {
  on_threads(ranks_.size(), [&](std::size_t i) {
    for (std::uint32_t n = 0; n < how_.prefetch; ++n)
      static_cast<void>(next(*ranks_[i]));
  });
  return seconds_of([&] {
    on_threads(ranks_.size(), [&](std::size_t i) {
      for (std::size_t n = 0; n < batches; ++n) {
        auto taken = next(*ranks_[i]);
        how_.compute();
      }
    });
  });
}

// Behind the end of an epoch comes the next one.
std::optional<batch> training::next(rank& r) const {
  for (auto ends = 0; ends < 2; ++ends)
    if (auto got = need(r.batches.next().result(), "taking a batch"))
      return got;
  give_up("an epoch of " + of_.name() + " has no batch");
}

void training::check(const batch& b) const {
  auto view = b.field(0);
  auto* at = view.data;
  for (auto id : b.ids()) {
    auto wanted = of_[id];
    if (!std::ranges::equal(std::span{at, wanted.size()}, wanted))
      give_up(fmt::format("sample {} of {} has other bytes than the file", id, of_.name()));
    at += wanted.size();
  }
}

python_trainings::python_trainings(const data_service& at, bool announce)
  : torch_(python_peer::start("loader", announce)),
    ours_(python_peer::start_with_package("millrace_loader", at.address(), announce)) {}

named_samples python_trainings::add_peers(
  contest& c, const sample_files& of, const taking& how, std::size_t batches) {
  named_samples out;
  if (!torch_)
    return out;
  torch_->build(of.table(how.batch));
  auto add = [&](const char* name, const char* way) {
    out.emplace_back(name, &c.add([this, what = command(way, how), batches] {
      return torch_->measure(what, static_cast<int>(batches));
    }));
  };
  if (of.sample_bytes() > 0) {
    add("DataLoader memmap", "memmap-0");
    add("DataLoader memmap 2 workers", "memmap-2");
    add("DataLoader h5py", "h5py-0");
  }
  add("DataLoader files", "files-0");
  add("DataLoader files 2 workers", "files-2");
  return out;
}

const samples* python_trainings::add_ours(
  contest& c, const sample_files& of, const taking& how, std::size_t batches) {
  if (!ours_)
    return nullptr;
  auto table = of.table(how.batch);
  table.tensors.tensors.front().name = of.name();
  table.tensors.tensors.front().shape.push_back(how.prefetch);
  ours_->build(table);
  return &c.add([this, what = command("next", how), batches] {
    return ours_->measure(what, static_cast<int>(batches));
  });
}

} // namespace millrace::bench
