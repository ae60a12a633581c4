// The functions that several sections share: one store, one load, one check.
#include <millrace/bench/store/sections.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::bench {

namespace {

// Models with fewer tensors are loaded by a percentage of the rows of each tensor.
constexpr std::size_t whole_tensors_min = 50;

void take_rows(
  selection& out, const tensor_desc& tensor, unsigned percent, std::span<std::byte> target) {
  auto part = tensor;
  part.shape[0] = (tensor.shape[0] * percent + 50) / 100;
  auto bytes = *size_bytes(part);
  if (bytes == 0)
    return;
  out.names.push_back(tensor.name);
  out.targets.push_back({{std::move(part), target.data() + out.size_bytes, {}}, 0});
  out.size_bytes += bytes;
}

} // namespace

extent extent::quick() {
  extent e;
  e.rounds = 3;
  e.small_bytes = 16u << 20;
  e.large_bytes = 64u << 20;
  e.client_bytes = 8u << 20;
  e.layers = {10, 100};
  e.clients = {1, 2};
  e.latency_requests = 200;
  e.real_models = false;
  return e;
}

std::vector<model_table> extent::tables() const {
  std::vector<model_table> out;
  for (auto size_bytes : {small_bytes, large_bytes}) {
    for (auto n : layers)
      out.push_back(layered(size_bytes, n));
    out.push_back(layered(size_bytes, 100, 0.3));
  }
  if (real_models) {
    auto data = std::string{MILLRACE_BENCH_DIRECTORY} + "/data/";
    out.push_back(need(from_file("VGG19", data + "layers_vgg19.json"), "reading a table"));
    out.push_back(
      need(from_file("BERT-large", data + "layers_bert_large_uncased.json"), "reading a table"));
  }
  std::erase_if(out, [this](auto& t) { return t.name.find(model) == std::string::npos; });
  return out;
}

std::vector<python_peer*> stage::python_peers() {
  std::vector<python_peer*> out;
  for (auto* peer : {&torch, &h5py})
    if (*peer)
      out.push_back(&**peer);
  return out;
}

double timed_store(
  class repository repo, const model_table& table, stage& s, bool sums, receipt* outcome) {
  auto views = table.over(s.source.first(table.size_bytes));
  store_options options;
  options.checksums = sums;
  return seconds_of([&] {
    auto r = repo.store("model", table.graph, std::move(views), options).get();
    if (outcome)
      *outcome = std::move(r);
  });
}

selection select(const model_table& table, unsigned percent, std::span<std::byte> target) {
  selection out;
  auto whole = percent == 100 || table.tensors.tensors.size() >= whole_tensors_min;
  for (auto& tensor : table.tensors.tensors) {
    if (!whole) {
      take_rows(out, tensor, percent, target);
      continue;
    }
    if (out.size_bytes * 100 >= table.size_bytes * percent)
      break;
    out.names.push_back(tensor.name);
    out.targets.push_back({{tensor, target.data() + out.size_bytes, {}}, {}});
    out.size_bytes += *size_bytes(tensor);
  }
  return out;
}

double timed_load(class repository repo, const selection& what) {
  auto targets = what.targets;
  return seconds_of([&] { repo.load("model", std::move(targets)).get(); });
}

void check_stored(class repository repo, const model_table& table, stage& s) {
  auto target = s.target.first(table.size_bytes);
  std::fill(target.begin(), target.end(), std::byte{0});
  timed_load(repo, select(table, 100, target));
  if (std::memcmp(target.data(), s.source.bytes().data(), target.size()) != 0)
    give_up(table.name + ": other bytes came back than were stored");
}

std::string sums_name(bool sums) { return sums ? "sums" : "plain"; }

std::string stages_of(const receipt& r) {
  auto text = [](std::uint64_t us) { return std::to_string(us); };
  return "last one, us: queued " + text(r.times.queued_us) + ", reserve " +
    text(r.times.reserve_us) + ", move " + text(r.times.move_us) + ", finish " +
    text(r.times.finish_us);
}

} // namespace millrace::bench
