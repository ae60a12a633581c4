// Reads the layers that a program gives, and describes those of stored models.
#include "graph.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace millrace::bindings {

namespace {

// What is behind the label and a dot.
std::string_view role_of(std::string_view name, std::string_view label) {
  return label.empty() ? name : name.substr(label.size() + 1);
}

class layer_reader {
public:
  layer_reader(const call& here, const given_layers& given) : here_(here), given_(given) {}

  status read(std::vector<layer>& out) {
    if (given_.count > graph_layers_max)
      return here_.wrong(
        given_.argument, fmt::format("has {} layers; at most {}", given_.count, graph_layers_max));
    if (!given_.first)
      return here_.wrong(given_.argument, fmt::format("is NULL, and there are {}", given_.count));
    out.resize(given_.count);
    for (std::size_t i = 0; i < given_.count; ++i)
      if (auto bad = read_one(i, out[i]); !bad.ok())
        return bad;
    return {};
  }

private:
  status wrong(std::size_t index, std::string_view field, std::string_view what) const {
    return here_.wrong(fmt::format("{}[{}]{}", given_.argument, index, field), what);
  }

  status read_one(std::size_t index, layer& out) const {
    auto& l = given_.first[index];
    if (!l.kind)
      return wrong(index, ".kind", "is NULL");
    if (l.reserved[0] != 0 || l.reserved[1] != 0)
      return wrong(index, ".reserved", "is set; this version of the library has no use for it");
    if (l.inputs_count > given_.count)
      return wrong(
        index, ".inputs_count", fmt::format("is {}, more than there are", l.inputs_count));
    if (l.inputs_count > 0 && !l.inputs)
      return wrong(index, ".inputs", fmt::format("is NULL, and there are {}", l.inputs_count));
    auto attributes = here_.pairs(
      fmt::format("{}[{}].attributes", given_.argument, index), l.attributes, l.attributes_count);
    if (!attributes)
      return attributes.error();
    out.label = text_or(l.label, "");
    out.kind = l.kind;
    out.attributes = std::move(*attributes);
    if (l.inputs_count > 0)
      out.inputs.assign(l.inputs, l.inputs + l.inputs_count);
    return {};
  }

  const call& here_;
  given_layers given_;
};

using by_label = std::unordered_map<std::string_view, std::size_t>;

// Cuts the name at its dots, the last one first.
const std::size_t* layer_of(const by_label& labels, std::string_view name) {
  auto dot = name.rfind('.');
  for (; dot != std::string_view::npos && dot > 0; dot = name.rfind('.', dot - 1))
    if (dot + 1 < name.size())
      if (auto found = labels.find(name.substr(0, dot)); found != labels.end())
        return &found->second;
  auto found = labels.find(std::string_view{});
  return found == labels.end() ? nullptr : &found->second;
}

// The label that the tensors of one layer have before their roles.
std::string_view label_of(
  const std::vector<std::string_view>& names, const std::vector<tensor_desc>& roles) {
  std::unordered_set<std::string_view> known;
  for (auto& role : roles)
    known.insert(role.name);
  auto fits = [&](std::string_view label) {
    return std::all_of(names.begin(), names.end(), [&](std::string_view name) {
      auto under = label.empty() ||
        (name.size() > label.size() + 1 && name.substr(0, label.size()) == label &&
         name[label.size()] == '.');
      return under && known.contains(role_of(name, label));
    });
  };
  if (names.empty() || fits({}))
    return {};
  auto name = names.front();
  for (auto dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1))
    if (fits(name.substr(0, dot)))
      return name.substr(0, dot);
  return {};
}

} // namespace

result<model_graph> graph_of(
  const call& here, const given_layers& given, const std::vector<tensor_view>& tensors) {
  std::vector<layer> layers;
  if (auto bad = layer_reader{here, given}.read(layers); !bad.ok())
    return fail(bad);
  by_label labels;
  for (std::size_t i = 0; i < layers.size(); ++i)
    // Several may have none, but tensors of one alone.
    if (!labels.emplace(layers[i].label, i).second && !layers[i].label.empty())
      return fail(here.wrong(
        fmt::format("{}[{}].label", given.argument, i),
        fmt::format("is {}, which another layer has", layers[i].label)));
  for (auto& t : tensors) {
    auto* index = layer_of(labels, t.desc.name);
    if (!index)
      return fail(
        here.wrong(given.argument, fmt::format("have no label for the tensor {}", t.desc.name)));
    auto& role = layers[*index].tensors.emplace_back(t.desc);
    role.name = role_of(t.desc.name, layers[*index].label);
  }
  model_graph graph;
  for (auto& l : layers)
    graph.add(std::move(l));
  return graph;
}

void describe_layers(const model_info& model, findings& f) {
  auto& graph = model.graph;
  auto& of_tensor = model.record.spec.tensor_layers;
  std::vector<std::vector<std::string_view>> names(graph.ids.size());
  for (std::size_t i = 0; i < std::min(of_tensor.size(), f.tensors.size()); ++i)
    if (of_tensor[i] < names.size())
      names[of_tensor[i]].push_back(f.tensors[i].name);
  std::size_t attributes = 0;
  for (auto& l : model.layers)
    attributes += l->attributes.size();
  f.attributes.reserve(attributes); // they are pointed into
  f.labels.reserve(graph.ids.size());
  for (std::size_t i = 0; i < graph.ids.size(); ++i) {
    auto& known = *model.layers[i];
    millrace_layer l{};
    if (!names[i].empty())
      l.label = f.labels.emplace_back(label_of(names[i], known.tensors)).c_str();
    l.kind = known.kind.c_str();
    l.attributes = f.attributes.data() + f.attributes.size();
    l.attributes_count = known.attributes.size();
    for (auto& [key, value] : known.attributes)
      f.attributes.push_back({key.c_str(), value.c_str()});
    l.inputs = graph.inputs[i].data();
    l.inputs_count = graph.inputs[i].size();
    std::copy_n(
      reinterpret_cast<const unsigned char*>(graph.ids[i].bytes.data()), sizeof(l.id), l.id);
    f.layers.push_back(l);
  }
}

} // namespace millrace::bindings
