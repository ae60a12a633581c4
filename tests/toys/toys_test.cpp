// A kind is a folder and a line: the program of this test has a driver and a bucket more than the
// product, and all that follows from a kind follows for them.
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/toy/toy_bucket.hpp>
#include <millrace/tests/contract/bucket_contract.hpp>
#include <millrace/tests/contract/local_rig.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tools/run.hpp>
#include <millrace/transport/memory/region.hpp>
#include <millrace/transport/toy/toy_driver.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <sstream>

using namespace millrace;
using namespace millrace::testing;

namespace {

const bool registered[] = {
  add_driver_contract("toy", [] { return std::make_unique<local_rig>("toy"); }),
  add_bucket_contract(
    "toy",
    [](const contract_settings& s) {
      auto opened = storage::open_toy_bucket(
        {.capacity_bytes = s.capacity_bytes, .descriptions_max_bytes = s.descriptions_max_bytes},
        s.memory);
      BOOST_REQUIRE_MESSAGE(opened, why(opened));
      return *opened;
    }),
};

config::settings good(std::string_view text) {
  auto parsed = parse_configuration(text, "t.yaml");
  BOOST_TEST_REQUIRE(parsed.has_value(), (parsed ? "" : parsed.error().to_string()));
  return *parsed;
}

std::string bad(std::string_view text) {
  auto parsed = parse_configuration(text, "t.yaml");
  BOOST_TEST_REQUIRE(!parsed.has_value());
  return parsed.error().detail();
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::string printed(std::vector<std::string> words) {
  std::ostringstream out, err;
  auto code = tools::run(std::move(words), out, err);
  BOOST_TEST(code == 0, err.str());
  return out.str();
}

} // namespace

BOOST_AUTO_TEST_SUITE(toys)

BOOST_AUTO_TEST_CASE(the_section_of_a_driver_is_read_and_checked) {
  auto bytes_max = [](std::string_view text) {
    return good(text).options.of<transport::toy_options>().transfer_bytes_max;
  };
  BOOST_TEST(bytes_max("") == 1u << 30);
  BOOST_TEST(bytes_max("toy: {transfer_max: 1MiB}") == 1u << 20);
  BOOST_TEST(
    bad("toy: {transfer_max: 1KiB}") ==
    "t.yaml:1:21: toy.transfer_max: '1KiB' is below the least allowed, 4KiB");
  BOOST_TEST(
    bad("toy: {tranfer_max: 1MiB}") ==
    "t.yaml:1:7: unknown key 'tranfer_max' in toy; did you mean 'transfer_max'?");
  BOOST_TEST(has(bad("toyy: {}"), "did you mean 'toy'?"));
  auto prefer = [](std::string_view text) {
    return good(text).options.of<transport::fabric_options>().prefer;
  };
  BOOST_TEST(std::ranges::count(prefer(""), "toy") == 1);
  BOOST_TEST((prefer("transport: {prefer: [toy]}") == std::vector<std::string>{"toy"}));
}

BOOST_AUTO_TEST_CASE(the_keys_of_a_bucket_are_read_and_checked) {
  auto toy = good("providers: [{name: a, bucket: toy, models_max: 3}]").providers.at(0);
  BOOST_TEST(toy.bucket == "toy");
  BOOST_TEST(toy.options.of<storage::toy_bucket_options>().models_max == 3u);
  BOOST_TEST(
    bad("providers: [{name: a, bucket: toy, models_max: 0}]") ==
    "t.yaml:1:48: providers[0].models_max: '0' is below the least allowed, 1");
  BOOST_TEST(
    bad("providers: [{name: a, models_max: 3}]") ==
    "t.yaml:1:23: providers[0].models_max: a bucket of kind memory has no such key; these kinds "
    "have it: toy");
  BOOST_TEST(has(bad("providers: [{name: a, bucket: tyo}]"), "did you mean 'toy'?"));
  BOOST_TEST(
    has(bad("providers: [{name: a, bucket: toy, capacity: 100TiB}]"), "together exceed 64TiB"));
}

BOOST_AUTO_TEST_CASE(documents_and_editors_know_the_keys) {
  auto& all = configuration_schema();
  BOOST_TEST(has(
    markdown_table(all, true),
    "| `toy.transfer_max` | size | `1GiB` | 4KiB to 1TiB | larger transfers are left to the other "
    "drivers |"));
  BOOST_TEST(has(
    markdown_table(all, true),
    "| `providers[].models_max` | number | `1000000` | 1 to 16777216 | most models that it holds "
    "(only `bucket: toy`) |"));
  BOOST_TEST(has(json_schema(all), "\"models_max\""));
  BOOST_TEST(has(printed({"config", "defaults"}), "  transfer_max: 1GiB"));
}

BOOST_AUTO_TEST_CASE(options_that_no_file_gave_are_checked_too) {
  auto loop = net::io_loop::start({}).value();
  transport::fabric_options options;
  options.prefer = {"toy"};
  options.drivers.edit<transport::toy_options>().transfer_bytes_max = 1;
  auto refused = transport::fabric::create(options, loop);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().detail() == "toy.transfer_max: '1' is below the least allowed, 4KiB");
  loop->stop();
}

BOOST_AUTO_TEST_CASE(a_node_serves_by_them_and_reports_them) {
  scratch_directory dir;
  auto address = "unix:" + dir.path() + "/n0.sock";
  auto settings = good(
    "node: {listen: '" + address +
    "'}\n"
    "transport: {prefer: [toy, shm, local]}\n"
    "toy: {transfer_max: 1MiB}\n"
    "providers: [{name: a, bucket: toy, capacity: 64MiB, models_max: 1}]\n");
  auto node = node::embed(settings);
  auto repository = node.client().repository();
  std::vector<float> small(10'000), large(1'000'000);
  std::iota(small.begin(), small.end(), 0.f);
  std::iota(large.begin(), large.end(), 0.f);
  auto store = [&](const std::string& name, std::vector<float>& values) {
    auto tensor = tensor_view::dense("w", dtype::f32, {values.size()}, std::span{values});
    return repository.store(name, {tensor}).result();
  };
  BOOST_TEST(store("small", small).value().driver == "toy");
  auto full = store("large", large);
  BOOST_TEST_REQUIRE(!full.has_value());
  BOOST_TEST(has(full.error().detail(), "raise models_max"));
  BOOST_TEST(repository.erase("small").result().has_value());
  // Larger than the toy takes: the next driver does.
  BOOST_TEST(store("large", large).value().driver == "local");
  auto text = printed({"status", "--address", address});
  BOOST_TEST(has(text, "  toys: transfers "), text);
  BOOST_TEST(has(text, " toy "), text);
  BOOST_TEST(has(printed({"status", "--json", "--address", address}), "\"toys\": {"));
}

BOOST_AUTO_TEST_CASE(the_command_verifies_what_they_left) {
  scratch_directory dir;
  std::ofstream{dir.path() + "/toy"} << "small\nlarge\n";
  std::ostringstream out, err;
  BOOST_TEST(tools::run({"models", "verify", dir.path()}, out, err) == 1);
  BOOST_TEST(has(out.str(), "small version 1: its bytes were in memory\n"), out.str());
  BOOST_TEST(has(out.str(), ": 0 models verified, 0 B read, 2 models damaged\n"), out.str());
}

BOOST_AUTO_TEST_SUITE_END()
