// Prints the graph and the layout of one model, as tables or as JSON.
#include <millrace/tools/describe_model.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <ostream>

namespace millrace::tools {

namespace {

constexpr std::size_t short_id = 12;

std::uint64_t bytes_of(const tensor_desc& tensor) { return size_bytes(tensor).value_or(0); }

// Empty where the model was stored without a graph.
std::string layer_of(const model_info& model, std::size_t tensor) {
  auto& layers = model.record.spec.tensor_layers;
  return tensor < layers.size() ? std::to_string(layers[tensor]) : "";
}

std::string shape_of(const tensor_desc& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

// Returns a layer's attributes on one line: "in=784 out=128".
std::string attributes_of(const layer_description& layer) {
  std::string text;
  for (auto& [key, value] : layer.attributes)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
  return text;
}

std::string inputs_of(const std::vector<std::uint32_t>& inputs) {
  return fmt::format("{}", fmt::join(inputs, " "));
}

json layer_to_json(const model_info& model, std::size_t index) {
  json tensors = json::array();
  auto& spec = model.record.spec;
  for (std::size_t t = 0; t < spec.tensor_layers.size(); ++t)
    if (spec.tensor_layers[t] == index)
      tensors.push_back(spec.tensors.tensors[t].name);
  json attributes = json::object();
  for (auto& [key, value] : model.layers[index]->attributes)
    attributes[key] = value;
  return {
    {"id", to_string(model.graph.ids[index])},
    {"kind", model.layers[index]->kind},
    {"attributes", attributes},
    {"inputs", model.graph.inputs[index]},
    {"tensors", tensors}};
}

json tensor_to_json(const model_info& model, std::size_t index) {
  auto& tensor = model.record.spec.tensors.tensors[index];
  json j = {
    {"name", tensor.name},
    {"dtype", to_string(tensor.type)},
    {"shape", tensor.shape},
    {"size_bytes", bytes_of(tensor)}};
  if (auto layer = layer_of(model, index); !layer.empty())
    j["layer"] = model.record.spec.tensor_layers[index];
  return j;
}

void print_layers(std::ostream& out, const model_info& model) {
  table layers{{">layer", "kind", "id", ">inputs", "attributes"}};
  for (std::size_t i = 0; i < model.graph.ids.size(); ++i)
    layers.add(
      {std::to_string(i), model.layers[i]->kind, to_string(model.graph.ids[i]).substr(0, short_id),
       inputs_of(model.graph.inputs[i]), attributes_of(*model.layers[i])});
  out << counted(model.graph.ids.size(), "layer") << '\n';
  layers.print(out, "  ");
}

void print_tensors(std::ostream& out, const model_info& model) {
  table tensors{{"tensor", "dtype", "shape", ">size", ">layer"}};
  auto& all = model.record.spec.tensors.tensors;
  for (std::size_t i = 0; i < all.size(); ++i)
    tensors.add(
      {all[i].name, std::string{to_string(all[i].type)}, shape_of(all[i]),
       human_size(bytes_of(all[i])), layer_of(model, i)});
  out << counted(all.size(), "tensor") << '\n';
  tensors.print(out, "  ");
}

} // namespace

json to_json(const model_summary& model) {
  return {{"name", model.name},
          {"version", model.version},
          {"size_bytes", model.size_bytes},
          {"tensors", model.tensors},
          {"stored_at_ns", model.stored_at_ns},
          {"pinned", model.pinned}};
}

json to_json(const model_info& model) {
  auto& record = model.record;
  json metadata = json::object();
  for (auto& [key, value] : record.spec.metadata)
    metadata[key] = value;
  json layers = json::array();
  for (std::size_t i = 0; i < model.graph.ids.size(); ++i)
    layers.push_back(layer_to_json(model, i));
  json tensors = json::array();
  for (std::size_t i = 0; i < record.spec.tensors.tensors.size(); ++i)
    tensors.push_back(tensor_to_json(model, i));
  return {
    {"name", record.spec.name},
    {"version", record.version},
    {"provider", model.provider},
    {"size_bytes", size_bytes(record.spec.tensors)},
    {"stored_at_ns", record.stored_at_ns},
    {"pinned", record.spec.pinned},
    {"metadata", metadata},
    {"layers", layers},
    {"tensors", tensors}};
}

void print(std::ostream& out, const model_info& model) {
  auto& record = model.record;
  out << printable(record.spec.name) << ": version " << record.version << " on "
      << printable(model.provider) << ", " << human_size(size_bytes(record.spec.tensors))
      << ", stored " << human_time(record.stored_at_ns) << (record.spec.pinned ? ", pinned" : "")
      << '\n';
  if (!record.spec.metadata.empty()) {
    table metadata{{"metadata", "value"}};
    for (auto& [key, value] : record.spec.metadata)
      metadata.add({key, value});
    metadata.print(out);
  }
  if (!model.graph.ids.empty())
    print_layers(out, model);
  print_tensors(out, model);
}

} // namespace millrace::tools
