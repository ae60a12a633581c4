// Tests architectures by the C functions: identities, stores with layers, descriptions.
#include "c_node.hpp"

#include <millrace.hpp>

#include <array>
#include <cstring>
#include <deque>

using namespace millrace::testing;
using identity = std::array<unsigned char, 16>;

namespace {

// A network of two layers and a sum of both, whose labels and order a test chooses.
struct network {
  static constexpr std::uint64_t wide[] = {4, 4}, flat[] = {4}, longer[] = {5};
  static constexpr millrace_pair features[] = {{"out", "4"}, {"in", "4"}};
  std::vector<std::uint32_t> none, of_second, of_sum;
  std::vector<millrace_layer> layers;
  std::deque<std::string> texts;
  std::vector<float> data = std::vector<float>(16, 1);
  std::vector<millrace_tensor> tensors;

  network(const std::string& first, const std::string& second, bool reversed = false) {
    std::uint32_t a = reversed ? 2 : 0, b = 1, sum = reversed ? 0 : 2;
    of_second = {a};
    of_sum = {a, b};
    layers.resize(3);
    layers[a] = linear(first, none);
    layers[b] = linear(second, of_second);
    layers[sum].kind = "add";
    layers[sum].inputs = of_sum.data();
    layers[sum].inputs_count = of_sum.size();
    for (auto& label : {first, second}) {
      tensor(label + ".weight", wide, 2);
      tensor(label + ".bias", flat, 1);
    }
  }
  network(const network&) = delete;

  millrace_layer linear(const std::string& label, const std::vector<std::uint32_t>& inputs) {
    millrace_layer l{};
    l.label = texts.emplace_back(label).c_str();
    l.kind = "Linear";
    l.attributes = features;
    l.attributes_count = 2;
    l.inputs = inputs.data();
    l.inputs_count = inputs.size();
    return l;
  }

  void tensor(const std::string& name, const std::uint64_t* shape, int rank) {
    millrace_tensor t{};
    t.name = texts.emplace_back(name).c_str();
    t.data = data.data();
    t.dtype = MILLRACE_F32;
    t.rank = rank;
    t.shape = shape;
    tensors.push_back(t);
  }

  std::vector<identity> ids() const { return millrace::abi::identify_layers(layers, tensors); }

  millrace_put_options options() const {
    auto o = sized<millrace_put_options>();
    o.layers = layers.data();
    o.layers_count = layers.size();
    return o;
  }
};

identity id_of(const millrace_layer& l) {
  identity id;
  std::memcpy(id.data(), l.id, id.size());
  return id;
}

} // namespace

struct graph_node : c_node {
  millrace::abi::client wrapped = millrace::abi::client::connect(millrace_node_address(node));

  millrace::abi::request description(const std::string& model) const {
    auto described = wrapped.describe(model);
    described.wait();
    return described;
  }
};

BOOST_FIXTURE_TEST_SUITE(graphs, graph_node)

BOOST_AUTO_TEST_CASE(equal_structures_have_equal_identities_whatever_the_labels_and_the_order) {
  network n{"fc1", "fc2"}, other{"a", "b.c", true};
  auto ids = n.ids(), others = other.ids();
  BOOST_TEST((ids[0] == others[2] && ids[1] == others[1] && ids[2] == others[0]));
  BOOST_TEST((ids[0] != ids[1] && ids[1] != ids[2]));
}

BOOST_AUTO_TEST_CASE(what_a_layer_is_and_what_feeds_it_decide_its_identity) {
  auto before = network{"x", "y"}.ids();
  auto expect_changed = [&](const char* what, auto change, bool first) {
    network n{"x", "y"};
    change(n);
    auto ids = n.ids();
    BOOST_TEST((ids[0] != before[0]) == first, what);
    BOOST_TEST((ids[1] != before[1] && ids[2] != before[2]), what);
  };
  expect_changed(
    "a kind", [](network& n) { n.layers[0].kind = "Bilinear"; }, true);
  expect_changed(
    "attributes", [](network& n) { n.layers[0].attributes_count = 1; }, true);
  expect_changed(
    "a type", [](network& n) { n.tensors[0].dtype = MILLRACE_I32; }, true);
  expect_changed(
    "a shape", [](network& n) { n.tensors[1].shape = network::longer; }, true);
  expect_changed(
    "an input", [](network& n) { n.layers[1].inputs_count = 0; }, false);
}

BOOST_AUTO_TEST_CASE(a_model_is_described_with_the_layers_it_was_stored_with) {
  network n{"fc1", "block.fc2"};
  auto o = n.options();
  MUST(millrace_put(client, "m", n.tensors.data(), n.tensors.size(), &o, nullptr));
  auto described = description("m");
  auto layers = described.layers();
  BOOST_REQUIRE(layers.size() == 3u);
  auto ids = n.ids();
  for (std::size_t i = 0; i < 3; ++i)
    BOOST_TEST((id_of(layers[i]) == ids[i]));
  BOOST_TEST(std::string{layers[0].label} == "fc1");
  BOOST_TEST(std::string{layers[1].label} == "block.fc2");
  BOOST_TEST(!layers[2].label);
  BOOST_TEST(std::string{layers[0].kind} == "Linear");
  BOOST_REQUIRE(layers[0].attributes_count == 2u);
  BOOST_TEST(std::string{layers[0].attributes[0].key} == "in"); // by key
  BOOST_TEST(std::string{layers[0].attributes[0].value} == "4");
  BOOST_REQUIRE(layers[2].inputs_count == 2u);
  BOOST_TEST(layers[2].inputs[1] == 1u);
  auto tensors = described.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::uint32_t layer = 9;
    MUST(millrace_request_tensor_layer(described.get(), i, &layer));
    auto second = std::string{tensors[i].name}.starts_with("block.fc2.");
    BOOST_TEST(layer == (second ? 1u : 0u), tensors[i].name);
  }
  millrace_layer none{};
  BOOST_TEST(millrace_request_layer(described.get(), 3, &none) == MILLRACE_NOT_FOUND);
  std::uint32_t layer = 0;
  REFUSED(
    millrace_request_tensor_layer(described.get(), 4, &layer), "millrace_request_tensor_layer",
    "index");
}

BOOST_AUTO_TEST_CASE(a_tensor_belongs_to_the_layer_with_the_longest_label) {
  network n{"a", "a.b"};
  n.tensor("a.b.c.d", network::flat, 1);
  n.tensor("a.out.weight", network::flat, 1);
  n.tensor("mean", network::flat, 1); // that of the layer without a label
  auto o = n.options();
  MUST(millrace_put(client, "m", n.tensors.data(), n.tensors.size(), &o, nullptr));
  auto described = description("m");
  auto layers = described.layers();
  BOOST_TEST(std::string{layers[0].label} == "a");
  BOOST_TEST(std::string{layers[1].label} == "a.b");
  BOOST_TEST(std::string{layers[2].label}.empty());
  const std::uint32_t expected[] = {0, 0, 1, 1, 1, 0, 2};
  for (std::size_t i = 0; i < n.tensors.size(); ++i) {
    std::uint32_t layer = 9;
    MUST(millrace_request_tensor_layer(described.get(), i, &layer));
    BOOST_TEST(layer == expected[i], n.tensors[i].name);
  }
}

BOOST_AUTO_TEST_CASE(layers_that_are_none_are_named) {
  auto refuse = [&](const char* what, auto change) {
    network n{"x", "y"};
    change(n);
    auto o = n.options();
    REFUSED(
      millrace_put(client, "m", n.tensors.data(), n.tensors.size(), &o, nullptr), "millrace_put",
      what);
    identity ids[3];
    REFUSED(
      millrace_identify_layers(
        n.layers.data(), n.layers.size(), n.tensors.data(), n.tensors.size(), ids[0].data()),
      "millrace_identify_layers", what);
  };
  refuse("layers[1].kind", [](network& n) { n.layers[1].kind = nullptr; });
  refuse("layers[0].reserved", [](network& n) { n.layers[0].reserved[1] = 1; });
  refuse("layers[0].inputs is NULL", [](network& n) {
    n.layers[0].inputs_count = 1, n.layers[0].inputs = nullptr;
  });
  refuse("layers[2].inputs_count", [](network& n) { n.layers[2].inputs_count = SIZE_MAX; });
  refuse("layers[0].attributes", [](network& n) { n.layers[0].attributes_count = SIZE_MAX; });
  refuse("layers[1].label", [](network& n) { n.layers[1].label = "x"; });
  refuse("no label for the tensor z.w", [](network& n) {
    n.layers[2].label = "sum";
    n.tensor("z.w", network::flat, 1);
  });
  auto o = sized<millrace_put_options>();
  o.layers_count = 1;
  network n{"x", "y"};
  REFUSED(
    millrace_put(client, "m", n.tensors.data(), n.tensors.size(), &o, nullptr), "millrace_put",
    "layers is NULL");
}

BOOST_AUTO_TEST_CASE(cycles_and_inputs_that_are_no_layers_are_named) {
  network n{"x", "y"};
  identity ids[3];
  auto identify = [&] {
    return millrace_identify_layers(
      n.layers.data(), n.layers.size(), n.tensors.data(), n.tensors.size(), ids[0].data());
  };
  n.of_second[0] = 1;
  BOOST_TEST(identify() == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(std::string{millrace_error()}.find("cycle") != std::string::npos);
  n.of_second[0] = 7;
  BOOST_TEST(identify() == MILLRACE_INVALID_ARGUMENT);
  BOOST_TEST(std::string{millrace_error()}.find("layer 7") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_program_of_version_0_1_stores_without_layers) {
  network n{"x", "y"};
  auto o = n.options();
  o.struct_size = offsetof(millrace_put_options, layers);
  o.layers_count = SIZE_MAX; // not of its structure
  MUST(millrace_put(client, "m", n.tensors.data(), n.tensors.size(), &o, nullptr));
  auto described = description("m");
  auto layers = described.layers();
  BOOST_REQUIRE(layers.size() == 2u); // a chain by the names
  BOOST_TEST(std::string{layers[1].label} == "y");
  BOOST_TEST(layers[1].inputs_count == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
