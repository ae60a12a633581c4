// Loads by names of tensors and layers, of models that the client knows and that have changed.
#include <millrace/core/model_graph.hpp>
#include <millrace/runtime/client/calls/known_models.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/scripted_service.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using actors::describe_request;
using actors::load_reply;
using actors::load_request;

namespace {

model_record record_of(std::vector<tensor_desc> tensors, std::uint64_t version) {
  model_record r;
  r.spec.name = "m";
  r.spec.tensors.tensors = std::move(tensors);
  auto graph = compact(model_graph::chain_of(r.spec.tensors)).value();
  r.spec.graph = encode_graph(graph);
  for (std::size_t i = 0; i < r.spec.tensors.tensors.size(); ++i)
    r.spec.tensor_layers.push_back(static_cast<std::uint32_t>(i));
  r.version = version;
  r.stored_at_ns = 1'000 + version;
  return r;
}

/// A provider of one model, whose bytes are its version.
struct fixture {
  testing::scripted_service service{{testing::listed("p")}};
  client c = client::connect(service.address());
  repository repo = c.repository();
  std::vector<std::byte> buffer = std::vector<std::byte>(1'000);

  void has(const model_record& record) {
    service.on<describe_request>([record](auto&, auto reply) { reply(record); });
    service.on<load_request>([record](auto& asked, auto reply) { reply(answer(record, asked)); });
  }

  static result<load_reply> answer(const model_record& record, const load_request& asked) {
    load_reply r;
    for (auto& s : asked.selections) {
      auto& all = record.spec.tensors.tensors;
      auto found = std::ranges::find(all, s.expected.name, &tensor_desc::name);
      if (found == all.end())
        return fail(errc::not_found, "it has no tensor {}", s.expected.name);
      if (*found != s.expected)
        return fail(errc::invalid_argument, "tensor {} is another", s.expected.name);
      r.size_bytes += *size_bytes(*found);
    }
    r.model = asked.model;
    r.version = record.version;
    r.stored_at_ns = record.stored_at_ns;
    r.provider = "p";
    r.eager.assign(r.size_bytes, static_cast<std::uint8_t>(record.version));
    return r;
  }

  // Returns how many tensors a load gave, whose bytes must all be of this version.
  std::size_t load_all(std::uint64_t version) {
    auto loaded = repo.load("m", std::vector<std::string>{}, buffer).get();
    BOOST_TEST(loaded.receipt.version == version);
    for (std::uint64_t i = 0; i < loaded.receipt.size_bytes; ++i)
      BOOST_TEST_REQUIRE((buffer[i] == static_cast<std::byte>(version)));
    return loaded.tensors.size();
  }

  void expect_asked(std::uint64_t descriptions, std::uint64_t loads) {
    BOOST_TEST(service.asked<describe_request>() == descriptions);
    BOOST_TEST(service.asked<load_request>() == loads);
  }
};

const std::vector<tensor_desc> two = {{"a.w", dtype::u8, {10}}, {"b.w", dtype::u8, {20}}};
const std::vector<tensor_desc> three = {
  {"a.w", dtype::u8, {10}}, {"b.w", dtype::u8, {20}}, {"c.w", dtype::u8, {30}}};

} // namespace

BOOST_FIXTURE_TEST_SUITE(loads_of_known_models, fixture)

BOOST_AUTO_TEST_CASE(a_load_by_name_is_one_message) {
  auto record = record_of(two, 1);
  has(record);
  BOOST_TEST(load_all(1) == 2u);
  expect_asked(1, 1);
  BOOST_TEST(load_all(1) == 2u);
  auto named = repo.load("m", {"b.w", "a.w"}, buffer).get();
  BOOST_TEST((named.tensors[0].desc == two[1] && named.tensors[1].desc == two[0]));
  BOOST_TEST((named.tensors[1].data == buffer.data() + 20));
  auto layer = decode_graph(record.spec.graph)->ids[1];
  BOOST_TEST((repo.load_layers("m", {layer}, buffer).get().tensors[0].desc == two[1]));
  expect_asked(1, 4);
}

BOOST_AUTO_TEST_CASE(a_description_serves_the_loads_that_follow) {
  has(record_of(two, 1));
  BOOST_TEST(
    repo.load("m", std::vector<std::string>{}, buffer, {.version = 1}).get().tensors.size() == 2u);
  expect_asked(1, 1);
  static_cast<void>(c.repository().load("m", {"a.w"}, buffer).get());
  expect_asked(2, 2);
  static_cast<void>(repo.load("m", {"a.w"}, buffer, {.version = 1}).get());
  expect_asked(2, 3);
}

BOOST_AUTO_TEST_CASE(other_tensors_of_a_newer_version_are_loaded) {
  has(record_of(two, 1));
  BOOST_TEST(load_all(1) == 2u);
  has(record_of(three, 2));
  BOOST_TEST(load_all(2) == 3u);
  expect_asked(2, 3);
  BOOST_TEST(load_all(2) == 3u);
  expect_asked(2, 4);
}

BOOST_AUTO_TEST_CASE(the_same_tensors_of_a_newer_version_are_loaded_once) {
  has(record_of(two, 1));
  BOOST_TEST(load_all(1) == 2u);
  has(record_of(two, 2));
  BOOST_TEST(load_all(2) == 2u);
  expect_asked(2, 2);
  BOOST_TEST(load_all(2) == 2u);
  expect_asked(2, 3);
}

BOOST_AUTO_TEST_CASE(a_tensor_with_another_shape_is_loaded_with_it) {
  has(record_of(two, 1));
  BOOST_TEST(load_all(1) == 2u);
  auto other = two;
  other[0].shape = {5, 3};
  has(record_of(other, 2));
  auto loaded = repo.load("m", {"a.w"}, buffer).get();
  BOOST_TEST((loaded.tensors[0].desc == other[0]));
  expect_asked(2, 3);
}

BOOST_AUTO_TEST_CASE(a_tensor_or_layer_that_is_gone_is_named) {
  auto record = record_of(three, 1);
  has(record);
  BOOST_TEST(load_all(1) == 3u);
  has(record_of(two, 2));
  auto gone = repo.load("m", {"c.w"}, buffer).result();
  BOOST_TEST_REQUIRE(!gone.has_value());
  BOOST_TEST((gone.error().code() == errc::not_found));
  BOOST_TEST(gone.error().detail().find("model m has no tensor c.w") != std::string::npos);
  auto layer = decode_graph(record.spec.graph)->ids[2];
  auto no_layer = repo.load_layers("m", {layer}, buffer).result();
  BOOST_TEST((!no_layer && no_layer.error().code() == errc::not_found));
  service.on<describe_request>([](auto&, auto reply) { reply(fail(errc::not_found, "no m")); });
  auto erased = repo.load("m", {"c.w"}, buffer).result();
  BOOST_TEST((!erased && erased.error().code() == errc::not_found));
}

// A layer keeps its tensors' names and shapes, and is another one.
BOOST_AUTO_TEST_CASE(a_layer_that_became_another_is_not_loaded) {
  auto record = record_of(two, 1);
  has(record);
  auto layer = decode_graph(record.spec.graph)->ids[1];
  static_cast<void>(repo.load_layers("m", {layer}, buffer).get());
  auto changed = record_of(two, 2);
  auto before = record_of({{"x.w", dtype::u8, {1}}, two[0], two[1]}, 2);
  changed.spec.graph = before.spec.graph;
  changed.spec.tensor_layers = {1, 2};
  has(changed);
  auto other = repo.load_layers("m", {layer}, buffer).result();
  BOOST_TEST((!other && other.error().code() == errc::not_found));
}

// A provider in memory that starts anew may count its versions from one again.
BOOST_AUTO_TEST_CASE(a_version_is_known_by_its_time) {
  has(record_of(two, 1));
  BOOST_TEST(load_all(1) == 2u);
  auto anew = record_of(three, 1);
  anew.stored_at_ns += 7;
  has(anew);
  BOOST_TEST(load_all(1) == 3u);
  expect_asked(2, 3);
}

BOOST_AUTO_TEST_CASE(a_service_that_does_not_say_the_time_is_asked_each_time) {
  auto record = record_of(two, 1);
  record.stored_at_ns = 0;
  has(record);
  BOOST_TEST(load_all(1) == 2u);
  BOOST_TEST(load_all(1) == 2u);
  expect_asked(2, 2);
}

BOOST_AUTO_TEST_CASE(a_buffer_too_small_for_the_newest_version_is_refused) {
  has(record_of(two, 1));
  BOOST_TEST(load_all(1) == 2u);
  has(record_of(three, 2));
  auto small = std::span{buffer}.first(30);
  auto loaded = repo.load("m", std::vector<std::string>{}, small).result();
  BOOST_TEST((!loaded && loaded.error().code() == errc::no_space));
  // What the client knows does not fit; what the provider has now does.
  has(record_of({two[0]}, 3));
  BOOST_TEST(repo.load("m", std::vector<std::string>{}, small).get().tensors.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_cancelled_load_of_a_known_model_leaves_the_buffer_alone) {
  auto record = record_of(two, 1);
  has(record);
  BOOST_TEST(load_all(1) == 2u);
  promise<std::function<void(result<load_reply>)>> asked;
  service.on<load_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto pending = repo.load("m", {"a.w"}, buffer);
  auto reply = asked.get_future().get();
  pending.cancel();
  buffer[0] = std::byte{77};
  load_request again;
  again.model = "m";
  again.selections.push_back({two[0], false, 0});
  reply(answer(record, again));
  BOOST_TEST((pending.result().error().code() == errc::cancelled));
  static_cast<void>(repo.describe("m").result()); // after the late receipt
  BOOST_TEST((buffer[0] == std::byte{77}));
  BOOST_TEST(transport::exposed_regions() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(known_models)

BOOST_AUTO_TEST_CASE(their_tensors_and_layers_are_bounded) {
  auto one = [](std::uint64_t version) {
    return std::make_shared<const runtime::known_model>(record_of(two, version), "p");
  };
  runtime::known_models kept{10}; // a model of two tensors and two layers counts five
  kept.keep("g", "m0", one(1));
  kept.keep("g", "m1", one(1));
  kept.keep("g", "m1", one(2));
  BOOST_TEST_REQUIRE(kept.find("g", "m0"));
  BOOST_TEST(kept.find("g", "m1")->version() == 2u);
  BOOST_TEST(!kept.find("h", "m0"));
  kept.keep("g", "m2", one(1));
  BOOST_TEST(!kept.find("g", "m0"));
  BOOST_TEST(kept.find("g", "m2"));
  runtime::known_models none{0};
  none.keep("g", "m", one(1));
  BOOST_TEST(!none.find("g", "m"));
}

BOOST_AUTO_TEST_SUITE_END()
