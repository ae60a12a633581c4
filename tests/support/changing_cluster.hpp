// A cluster whose list of providers changes, and what its clients must find. Used by tests of names
// and views.
#pragma once

#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/configuration.hpp>

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace millrace::testing {

/// A provider as a file describes it. `rests` names its bucket and its node, which it never
/// changes.
struct listed_provider {
  std::string name;
  std::string rests;
  std::string group = "default";
  std::uint32_t weight = 1;
  std::string id{};

  listed_provider(std::string n) : name(n), rests(n) {}
  listed_provider(std::string n, std::string r, std::string g = "default", std::uint32_t w = 1)
    : name(std::move(n)), rests(std::move(r)), group(std::move(g)), weight(w) {}
};
using provider_list = std::vector<listed_provider>;

/// What nodes and clients may believe.
inline const std::vector<provider_list> beliefs = {
  {{"a"}, {"b"}},
  {{"a"}, {"b"}, {"c"}},
  {{"a"}, {"c"}},
  {{"a"}, {"bb", "b"}, {"c"}},
  {{"a", "a", "default", 5}, {"b"}, {"c"}},
  {{"a"}, {"b"}, {"c", "c", "cold"}},
  {{"b"}, {"c"}}};

/// Where the buckets rest, and their kinds.
struct cluster_place {
  std::string directory;
  std::map<std::string, std::string> kinds{}; // of buckets; otherwise "rocksdb"

  std::string kind_of(const std::string& rests) const {
    auto at = kinds.find(rests);
    return at == kinds.end() ? "rocksdb" : at->second;
  }

  /// Returns the file of a cluster with one node for each provider, named "on-RESTS".
  std::string text(const provider_list& providers) const {
    std::string out = "staging: { size: 16MiB }\n"
                      "client: { connect_timeout: 3s, reconnect_backoff_max: 100ms }\n"
                      "cluster:\n  nodes:\n";
    for (auto& p : providers) {
      auto kind = kind_of(p.rests);
      auto path = directory + "/" + p.rests;
      out += fmt::format(
        "    - name: on-{}\n      listen: 'unix:{}.sock'\n      providers: [{{ name: {}, group: "
        "{}, "
        "weight: {}, {} {} }}]\n",
        p.rests, path, p.name, p.group, p.weight, p.id.empty() ? "" : "id: " + p.id + ",",
        kind == "memory"   ? "bucket: memory, capacity: 16MiB"
          : kind == "pmem" ? "bucket: pmem, window: 1MiB, capacity: 32MiB, path: " + path + ".pool"
                           : "bucket: rocksdb, window: 1MiB, capacity: 64MiB, path: " + path);
    }
    return out;
  }

  config::settings settings(const provider_list& providers) const {
    return parse_configuration(text(providers), "cluster.yaml").value();
  }
  client with(const provider_list& providers) const {
    return client::of(settings(providers)).value();
  }
};

inline std::string model_name(int i) { return "model/" + std::to_string(i); }

/// Stores a number as a model.
inline result<receipt> store_number(repository r, const std::string& model, std::uint64_t value) {
  tensor_view one{{"t", dtype::u64, {1}}, reinterpret_cast<std::byte*>(&value), {}};
  return r.store(model, {one}).result();
}

inline result<std::uint64_t> load_number(repository r, const std::string& model) {
  std::uint64_t value = 0;
  tensor_view one{{"t", dtype::u64, {1}}, reinterpret_cast<std::byte*>(&value), {}};
  auto got = r.load(model, {{one, {}}}).result();
  if (!got)
    return fail(got.error());
  return value;
}

inline std::string outcome_of(const result<std::uint64_t>& r) {
  return r ? std::to_string(*r) : r.error().to_string();
}

/// Returns true if a request may fail so while providers come and go.
inline bool may_fail(const status& why) {
  auto code = why.code();
  return code == errc::unavailable || code == errc::peer_lost || code == errc::busy ||
    code == errc::deadline_exceeded;
}

/// The numbers that a name may have, by the answers to changes so far. 0: there is no model.
class expected_number {
public:
  /// A change to `value` was tried.
  void tried(std::uint64_t value) { may_be_.insert(value); }
  /// A change to `value` was acknowledged.
  void is(std::uint64_t value) { may_be_ = {value}; }

  /// Returns false when the answer is wrong.
  [[nodiscard]] bool stored(std::uint64_t value, const result<receipt>& answer) {
    answer ? is(value) : tried(value);
    return answer || may_fail(answer.error());
  }
  /// Returns false when the answer is wrong.
  [[nodiscard]] bool erased(const result<void>& answer) {
    if (answer || says(answer.error(), "from now on"))
      return is(0), true;
    if (answer.error().code() != errc::not_found)
      return tried(0), may_fail(answer.error());
    return says(answer.error(), "taken out") || may_be_.contains(0);
  }
  /// Returns false when the answer is wrong. A provider that no present file names is gone by the
  /// operator's will, and its models with it.
  [[nodiscard]] bool loaded(const result<std::uint64_t>& answer) const {
    if (answer)
      return may_be_.contains(*answer);
    if (answer.error().code() != errc::not_found)
      return may_fail(answer.error());
    return says(answer.error(), "taken out") || may_be_.contains(0);
  }

  /// Returns false when the answer is wrong while all providers are there.
  [[nodiscard]] bool is_found(const result<std::uint64_t>& answer) const {
    if (answer)
      return may_be_.contains(*answer);
    return answer.error().code() == errc::not_found && may_be_.contains(0);
  }

  /// Returns the only number that the name can have.
  std::optional<std::uint64_t> certain() const {
    return may_be_.size() == 1 ? std::optional{*may_be_.begin()} : std::nullopt;
  }

  std::string text() const {
    std::string out;
    for (auto value : may_be_)
      out += (out.empty() ? "" : " or ") + std::to_string(value);
    return out;
  }

private:
  static bool says(const status& why, const char* words) {
    return why.detail().find(words) != std::string::npos;
  }

  std::set<std::uint64_t> may_be_{0};
};

} // namespace millrace::testing
