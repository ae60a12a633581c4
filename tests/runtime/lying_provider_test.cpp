// Tests a client with a provider that lies, comes too late, or leaves things out.
#include <millrace/core/codec.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/scripted_service.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

using namespace millrace;
using actors::describe_request;
using actors::erase_request;
using actors::load_many_request;
using actors::load_reply;
using actors::load_request;
using actors::resolve_request;
using actors::store_many_request;
using actors::store_request;

namespace {

model_record record_of(std::vector<tensor_desc> tensors) {
  model_record r;
  r.spec.name = "m";
  r.spec.tensors.tensors = std::move(tensors);
  r.version = 1;
  return r;
}

// A chain of one layer for every tensor, as a provider would describe it.
model_record with_graph(const std::vector<tensor_desc>& tensors) {
  auto r = record_of(tensors);
  auto graph = compact(model_graph::chain_of(r.spec.tensors)).value();
  r.spec.graph = encode_graph(graph);
  r.spec.tensor_layers.resize(tensors.size());
  return r;
}

struct fixture {
  testing::scripted_service service{{testing::listed("p")}};
  client c = client::connect(service.address());
  repository repo = c.repository();
  std::vector<std::byte> buffer = std::vector<std::byte>(100'000);

  fixture() {
    service.on<erase_request>([](auto&, auto reply) { reply(actors::done_reply{}); });
  }

  void describes(const model_record& record) {
    service.on<describe_request>([record](auto&, auto reply) { reply(record); });
  }

  void expect_refused(const model_record& record, std::vector<std::string> names = {}) {
    describes(record);
    auto loaded = repo.load("m", std::move(names), buffer).result();
    BOOST_TEST((!loaded && loaded.error().code() == errc::protocol_error));
    auto described = repo.describe("m").result();
    BOOST_TEST((!described && described.error().code() == errc::protocol_error));
    BOOST_TEST(service.asked<load_request>() == 0u);
    BOOST_TEST(transport::exposed_regions() == 0u);
  }

  // What the only provider of a group says of a model that it does not have.
  actors::location alone() {
    actors::location where;
    where.id = "p";
    millrace::group_member p;
    p.id = p.name = "p";
    p.node = "n0";
    p.addresses = {service.address()};
    where.history = {"default", {{1, {p}}}, 1};
    return where;
  }

  // When this returns, the client has handled the replies that were sent before, and the service
  // what followed.
  void settle() {
    repo.erase("x").get();
    repo.erase("x").get();
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(lying_providers, fixture)

BOOST_AUTO_TEST_CASE(a_load_cancelled_while_the_model_is_described_touches_nothing) {
  promise<std::function<void(result<model_record>)>> asked;
  service.on<describe_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  auto load = repo.load("m", std::vector<std::string>{}, buffer);
  auto reply = asked.get_future().get();
  load.cancel();
  BOOST_TEST((load.result().error().code() == errc::cancelled));
  reply(record_of({{"a", dtype::u8, {buffer.size()}}}));
  settle();
  BOOST_TEST(service.asked<load_request>() == 0u);
  BOOST_TEST(transport::exposed_regions() == 0u);
}

// While the list of providers does not change, names are not searched for.
BOOST_AUTO_TEST_CASE(a_usual_look_up_is_one_message) {
  tensor_view view{{"a", dtype::u8, {100}}, buffer.data(), {}};
  service.on<load_request>([](auto&, auto reply) {
    load_reply r;
    r.eager.resize(100);
    reply(r);
  });
  describes(record_of({{"a", dtype::u8, {100}}}));
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(repo.load("m", {{view, {}}}).result());
    static_cast<void>(repo.describe("m").result());
    BOOST_TEST(repo.erase("m").result().has_value());
  }
  BOOST_TEST(service.asked<load_request>() == 3u);
  BOOST_TEST(service.asked<describe_request>() == 3u);
  BOOST_TEST(service.asked<erase_request>() == 3u);
  BOOST_TEST(service.asked<actors::locate_request>() == 0u);
}

// A provider refuses a store that names a larger one.
BOOST_AUTO_TEST_CASE(a_store_passes_on_no_number_of_a_version_that_cannot_be) {
  auto where = alone();
  where.has_model = true;
  where.view = 1;
  where.version = ~std::uint64_t{0};
  service.on<actors::locate_request>([where](auto&, auto reply) { reply(where); });
  std::vector<std::uint64_t> after;
  service.on<store_request>([&](auto& request, auto reply) {
    after.push_back(request.version_after);
    reply(fail(after.size() == 1 ? errc::unsupported_version : errc::invalid_argument, "refused"));
  });
  tensor_view view{{"a", dtype::u8, {100}}, buffer.data(), {}};
  auto stored = repo.store("m", {view}).result();
  BOOST_TEST((!stored && stored.error().code() == errc::invalid_argument));
  BOOST_TEST((after == std::vector<std::uint64_t>{0, version_after_max}));
}

// Each is removed with the version that the listing has shown.
BOOST_AUTO_TEST_CASE(a_listing_searches_once_however_many_marks_it_removes) {
  service.on<actors::locate_request>([where = alone()](auto&, auto reply) { reply(where); });
  service.on<actors::list_request>([](auto&, auto reply) {
    actors::model_list marks;
    for (std::uint64_t version : {1, 2, 3}) {
      auto& mark = marks.models.emplace_back();
      mark.name = "m" + std::to_string(version);
      mark.version = version;
      mark.view = 1;
      mark.erased = true;
    }
    reply(marks);
  });
  std::vector<std::string> erased;
  service.on<erase_request>([&](auto& request, auto reply) {
    erased.push_back(fmt::format("{} {}", request.model, request.version));
    reply(actors::done_reply{});
  });
  auto listed = repo.list().get();
  BOOST_TEST(listed.found.empty());
  BOOST_TEST(listed.marks.empty());
  BOOST_TEST(listed.swept.result().has_value());
  BOOST_TEST((erased == std::vector<std::string>{"m1 1", "m2 2", "m3 3"}));
  BOOST_TEST(service.asked<actors::locate_request>() == 1u);
}

BOOST_AUTO_TEST_CASE(bytes_inside_a_reply_do_not_arrive_after_a_cancellation) {
  auto small = std::span{buffer}.first(100); // few enough for that
  promise<std::function<void(result<load_reply>)>> asked;
  service.on<load_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  tensor_view view{{"a", dtype::u8, {small.size()}}, small.data(), {}};
  auto load = repo.load("m", {{view, {}}});
  auto reply = asked.get_future().get();
  load.cancel();
  load_reply r;
  r.eager.resize(small.size());
  std::fill(r.eager.begin(), r.eager.end(), std::uint8_t{42});
  reply(r);
  settle();
  BOOST_TEST((buffer == std::vector<std::byte>(buffer.size())));
}

BOOST_AUTO_TEST_CASE(sizes_that_overflow_expose_nothing) {
  std::vector<tensor_desc> tensors;
  for (char name = 'a'; name <= 'p'; ++name)
    tensors.push_back({{name}, dtype::f64, {1ull << 57}});
  expect_refused(record_of(tensors));
  // One that is honest by itself, asked for until the sum wraps.
  tensors.resize(1);
  describes(record_of(tensors));
  auto loaded = repo.load("m", std::vector<std::string>(16, "a"), buffer).result();
  BOOST_TEST((!loaded && loaded.error().code() == errc::invalid_argument));
  BOOST_TEST(transport::exposed_regions() == 0u);
}

BOOST_AUTO_TEST_CASE(tensors_of_layers_that_are_not_there_are_refused) {
  auto record = with_graph({{"a", dtype::u8, {10}}, {"b", dtype::u8, {10}}});
  auto id = decode_graph(record.spec.graph)->ids[0];
  record.spec.tensor_layers = {0, 1'000'000};
  expect_refused(record);
  auto loaded = repo.load_layers("m", {id}, buffer).result();
  BOOST_TEST((!loaded && loaded.error().code() == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(the_record_of_another_model_or_version_is_refused) {
  auto record = record_of({{"a", dtype::u8, {10}}});
  record.spec.name = "n";
  expect_refused(record);
  record.spec.name = "m";
  describes(record);
  BOOST_TEST(repo.describe("m", 1).result().has_value());
  BOOST_TEST((repo.describe("m", 2).result().error().code() == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(receipts_about_something_else_are_refused) {
  load_reply honest;
  honest.model = "m";
  honest.version = 2;
  honest.size_bytes = 100;
  honest.eager.resize(100);
  auto answers = [&](const load_reply& r) {
    service.on<load_request>([r](auto&, auto reply) { reply(r); });
    tensor_view view{{"a", dtype::u8, {100}}, buffer.data(), {}};
    return repo.load("m", {{view, {}}}, {.version = 2}).result();
  };
  BOOST_TEST(answers(honest).has_value());
  auto name = honest, version = honest, size = honest;
  name.model = "n";
  version.version = 1;
  size.size_bytes = 99;
  for (auto& lie : {name, version, size}) {
    auto loaded = answers(lie);
    BOOST_TEST((!loaded && loaded.error().code() == errc::protocol_error));
  }
  // Without a version, any is right.
  service.on<load_request>([version](auto&, auto reply) { reply(version); });
  tensor_view whole{{"a", dtype::u8, {100}}, buffer.data(), {}};
  BOOST_TEST(repo.load("m", {{whole, {}}}).result().has_value());
  auto stores = [&](const std::string& model, std::uint64_t size_bytes) {
    store_receipt r;
    r.model = model;
    r.version = 1;
    r.size_bytes = size_bytes;
    service.on<actors::store_request>([r](auto&, auto reply) { reply(r); });
    return repo.store("m", {{{"a", dtype::u8, {100}}, buffer.data(), {}}}).result().has_value();
  };
  BOOST_TEST(stores("m", 100));
  BOOST_TEST(!stores("n", 100));
  BOOST_TEST(!stores("m", 10));
}

BOOST_AUTO_TEST_CASE(a_layer_that_is_left_out_or_not_asked_for_is_not_taken) {
  auto record = with_graph({{"a.w", dtype::u8, {10}}});
  describes(record);
  layer_description lie;
  lie.kind = "lie";
  model_graph strangers;
  strangers.add({"", lie.kind, {}, {}, {}});
  auto other = identify_layers(strangers).value().at(0);
  service.on<resolve_request>([&](auto&, auto reply) {
    reply(actors::layer_list{{{other, encode(lie)}}});
  });
  auto described = repo.describe("m").result();
  BOOST_TEST((!described && described.error().code() == errc::protocol_error));
  // If the client had kept the stranger, it would not ask for it here.
  compact_graph strange{{other}, {{}}};
  record.spec.graph = encode_graph(strange);
  describes(record);
  auto asked = service.asked<resolve_request>();
  BOOST_TEST(repo.describe("m").result().has_value());
  BOOST_TEST(service.asked<resolve_request>() == asked + 1);
}

BOOST_AUTO_TEST_CASE(a_false_description_of_a_layer_is_not_believed) {
  auto record = with_graph({{"a.w", dtype::u8, {10}}});
  auto id = decode_graph(record.spec.graph)->ids.at(0);
  describes(record);
  layer_description lie;
  lie.kind = "lie";
  service.on<resolve_request>([&](auto&, auto reply) {
    reply(actors::layer_list{{{id, encode(lie)}}});
  });
  auto described = repo.describe("m").result();
  BOOST_TEST_REQUIRE(!described.has_value());
  BOOST_TEST((described.error().code() == errc::protocol_error));
  BOOST_TEST(described.error().detail().find("belongs to another layer") != std::string::npos);
}

// Stores of one byte each, under the names m0, m1, …
std::vector<model_to_store> small_stores(std::size_t count, std::byte& byte) {
  std::vector<model_to_store> out;
  for (std::size_t i = 0; i < count; ++i)
    out.push_back(
      {.model = "m" + std::to_string(i), .tensors = {{{"a", dtype::u8, {1}}, &byte, {}}}});
  return out;
}

template <class Receipt>
Receipt receipt_about(const std::string& model, std::uint64_t version, std::uint64_t size_bytes) {
  Receipt r;
  r.model = model;
  r.version = version;
  r.size_bytes = size_bytes;
  return r;
}

actors::outcomes_of<store_receipt> receipts_for(const store_many_request& asked) {
  actors::outcomes_of<store_receipt> out;
  for (auto& item : asked.items)
    out.items.push_back({0, {}, receipt_about<store_receipt>(item.spec.name, 1, 1)});
  return out;
}

BOOST_AUTO_TEST_CASE(small_requests_travel_together) {
  service.on<store_many_request>([](auto& asked, auto reply) { reply(receipts_for(asked)); });
  service.on<store_request>(
    [](auto& asked, auto reply) { reply(receipt_about<store_receipt>(asked.spec.name, 1, 1)); });
  for (auto& r : when_all(repo.store_many(small_stores(300, buffer[0]))).get())
    BOOST_TEST(r.has_value());
  BOOST_TEST(service.asked<store_many_request>() == 2u); // 256 and 44
  BOOST_TEST(service.asked<store_request>() == 0u);
  BOOST_TEST(when_all(repo.store_many(small_stores(1, buffer[0]))).get()[0].has_value());
  BOOST_TEST(service.asked<store_many_request>() == 2u);
  BOOST_TEST(service.asked<store_request>() == 1u);
  // Two in the same time, and one that has less.
  auto three = small_stores(3, buffer[0]);
  three[1].options.timeout = std::chrono::seconds{1};
  for (auto& r : when_all(repo.store_many(three)).get())
    BOOST_TEST(r.has_value());
  BOOST_TEST(service.asked<store_many_request>() == 3u);
  BOOST_TEST(service.asked<store_request>() == 2u);
}

BOOST_AUTO_TEST_CASE(each_of_several_receipts_must_be_about_its_model) {
  service.on<store_many_request>([](auto& asked, auto reply) {
    auto out = receipts_for(asked);
    out.items[1].receipt.model = "another";
    out.items[2] = {static_cast<std::uint8_t>(errc::no_space), "full", {}};
    reply(out);
  });
  auto outcomes = when_all(repo.store_many(small_stores(4, buffer[0]))).get();
  BOOST_TEST(outcomes[0].has_value());
  BOOST_TEST((!outcomes[1] && outcomes[1].error().code() == errc::protocol_error));
  BOOST_TEST((!outcomes[2] && outcomes[2].error().code() == errc::no_space));
  BOOST_TEST(outcomes[3].has_value());
  service.on<store_many_request>([](auto& asked, auto reply) {
    auto out = receipts_for(asked);
    out.items.pop_back();
    reply(out);
  });
  for (auto& r : when_all(repo.store_many(small_stores(4, buffer[0]))).get())
    BOOST_TEST((!r && r.error().code() == errc::protocol_error));
}

// The provider knows the layers of the other ones.
BOOST_AUTO_TEST_CASE(one_of_several_that_must_be_asked_again_is_asked_alone) {
  service.on<store_many_request>([](auto& asked, auto reply) {
    auto out = receipts_for(asked);
    out.items[1] = {static_cast<std::uint8_t>(errc::unknown_layers), "layers", {}};
    reply(out);
  });
  service.on<store_request>(
    [](auto& asked, auto reply) { reply(receipt_about<store_receipt>(asked.spec.name, 7, 1)); });
  auto outcomes = when_all(repo.store_many(small_stores(3, buffer[0]))).get();
  BOOST_TEST((outcomes[1] && outcomes[1]->version == 7));
  BOOST_TEST((outcomes[0] && outcomes[2]));
  BOOST_TEST(service.asked<store_request>() == 1u);
}

BOOST_AUTO_TEST_CASE(one_of_several_loads_can_be_cancelled) {
  promise<std::function<void(result<actors::outcomes_of<load_reply>>)>> asked;
  service.on<load_many_request>([asked](auto&, auto reply) { asked.set(std::move(reply)); });
  std::vector<model_to_load> loads;
  for (int i = 0; i < 2; ++i)
    loads.push_back(
      {.model = "m" + std::to_string(i),
       .targets = {{{{"a", dtype::u8, {100}}, buffer.data() + 100 * i, {}}, {}}}});
  auto pending = repo.load_many(loads);
  auto reply = asked.get_future().get();
  pending[0].cancel();
  actors::outcomes_of<load_reply> out;
  for (auto* name : {"m0", "m1"}) {
    out.items.push_back({0, {}, receipt_about<load_reply>(name, 1, 100)});
    out.items.back().receipt.eager.assign(100, 42);
  }
  reply(out);
  BOOST_TEST((pending[0].result().error().code() == errc::cancelled));
  BOOST_TEST(pending[1].result().has_value());
  BOOST_TEST((buffer[0] == std::byte{0} && buffer[100] == std::byte{42}));
}

BOOST_AUTO_TEST_CASE(a_directory_with_a_node_that_has_no_address_is_refused) {
  service.on<actors::directory_request>([this](auto&, auto reply) {
    actors::directory where;
    where.node = "n0";
    where.nodes = {{"n0", {service.address()}}, {"n1", {}}};
    reply(where);
  });
  BOOST_CHECK_EXCEPTION(client::connect(service.address()), error, [](const error& e) {
    return e.code() == errc::protocol_error;
  });
}

BOOST_AUTO_TEST_SUITE_END()
