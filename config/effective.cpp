// Reads a file as `load` does, and asks each section for its values.
#include <millrace/config/document.hpp>
#include <millrace/config/effective.hpp>
#include <millrace/config/load.hpp>
#include <millrace/config/read.hpp>

#include <fmt/core.h>

namespace millrace::config {

namespace {

class collector {
public:
  collector(const draft& d, const std::string& file_name) : draft_(d), file_name_(file_name) {}

  void add(const section& s, const void* options, const std::string& path) {
    for (std::size_t i = 0; i < s.keys.size(); ++i) {
      auto key = fmt::format("{}.{}", path, s.keys[i].name);
      auto origin =
        draft_.has(key) ? fmt::format("{}:{}", file_name_, draft_.place_of(key).line) : "default";
      out_.push_back(
        {std::move(key), text_of(s.keys[i], s.get(options, i)), std::move(origin),
         s.keys[i].expert});
    }
  }

  void add_providers(
    const schema& all, const std::vector<provider_settings>& providers, const std::string& path) {
    for (std::size_t i = 0; i < providers.size(); ++i) {
      auto entry = fmt::format("{}[{}]", path, i);
      add(all.provider(), &providers[i], entry);
      auto& kind = all.bucket(providers[i].bucket)->keys;
      add(kind, kind.find(providers[i].options), entry);
    }
  }

  std::vector<effective_key> take() { return std::move(out_); }

private:
  const draft& draft_;
  const std::string& file_name_;
  std::vector<effective_key> out_;
};

} // namespace

result<std::vector<effective_key>> effective_keys(
  std::string_view text, const std::string& file_name, const schema& all) {
  auto doc = document::parse(text, file_name);
  if (!doc)
    return fail(doc.error());
  auto d = read_settings(*doc, all);
  if (!d)
    return fail(d.error());
  if (auto bad = complete_settings(*doc, all, *d); !bad.ok())
    return fail(std::move(bad));
  auto& values = d->values;
  collector found{*d, file_name};
  for (auto& s : all.sections())
    found.add(s.keys, s.edit(values), std::string{s.keys.name});
  if (!values.is_cluster) {
    found.add_providers(all, values.providers, "providers");
    return found.take();
  }
  found.add(all.cluster(), &values.cluster, "cluster");
  for (std::size_t i = 0; i < values.nodes.size(); ++i) {
    auto path = fmt::format("cluster.nodes[{}]", i);
    found.add(all.cluster_entry(), &values.nodes[i], path);
    found.add_providers(all, values.nodes[i].providers, path + ".providers");
  }
  return found.take();
}

result<std::vector<effective_key>> effective_keys(const std::string& path, const schema& all) {
  auto text = read_file(path);
  return text ? effective_keys(*text, path, all) : fail(text.error());
}

} // namespace millrace::config
