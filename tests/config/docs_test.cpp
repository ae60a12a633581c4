// docs/configuration.md and the JSON schema say what the table of keys says.
// MILLRACE_WRITE_TABLES=1 writes the tables into the document.
#include <millrace/runtime/configuration.hpp>
#include <millrace/transport/fabric_options.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>

using namespace millrace;
using namespace millrace::config;
using nlohmann::json;

namespace {

std::string marker(bool expert, const char* where) {
  return std::string{"<!-- "} + (expert ? "expert keys: " : "keys: ") + where + " -->\n";
}

std::string document() {
  std::ifstream file{MILLRACE_CONFIGURATION_DOC};
  return {std::istreambuf_iterator<char>{file}, {}};
}

const json& property(const json& schema, const std::string& section, const std::string& key) {
  return schema.at("properties").at(section).at("properties").at(key);
}

} // namespace

BOOST_AUTO_TEST_SUITE(config_docs)

BOOST_AUTO_TEST_CASE(the_document_has_the_tables_of_the_schema) {
  auto text = document();
  for (bool expert : {false, true}) {
    auto begin = text.find(marker(expert, "begin"));
    auto end = text.find(marker(expert, "end"));
    BOOST_TEST_REQUIRE((begin != text.npos && end != text.npos && begin < end));
    begin += marker(expert, "begin").size();
    auto table = markdown_table(configuration_schema(), expert);
    if (std::getenv("MILLRACE_WRITE_TABLES"))
      std::ofstream{MILLRACE_CONFIGURATION_DOC} << text.replace(begin, end - begin, table);
    else
      BOOST_TEST(
        (text.substr(begin, end - begin) == table),
        "docs/configuration.md does not have the keys as they are; write its tables anew: "
        "MILLRACE_WRITE_TABLES=1 build/dev/bin/test_config --run_test=config_docs");
  }
}

BOOST_AUTO_TEST_CASE(few_keys_are_for_everybody) {
  auto keys = configuration_schema().keys();
  auto common = std::count_if(keys.begin(), keys.end(), [](auto& k) { return !k.spec.expert; });
  BOOST_TEST(common <= 26);
}

BOOST_AUTO_TEST_CASE(every_example_of_the_document_is_a_good_configuration) {
  constexpr std::string_view fence = "```yaml\n";
  auto text = document();
  int examples = 0;
  for (auto at = text.find(fence); at != text.npos; at = text.find(fence, at), ++examples) {
    at += fence.size();
    auto parsed = parse_configuration(text.substr(at, text.find("```", at) - at), "example");
    BOOST_TEST(parsed.has_value(), (parsed ? "" : parsed.error().to_string()));
  }
  BOOST_TEST(examples == 6);
}

BOOST_AUTO_TEST_CASE(every_key_has_a_line_of_words_and_a_sound_range) {
  std::set<std::string> paths;
  for (auto& key : configuration_schema().keys()) {
    auto& spec = key.spec;
    BOOST_TEST_CONTEXT(key.path()) {
      // Kinds may mean different things by one key.
      std::string kinds;
      for (auto kind : key.only_for)
        kinds += " " + std::string{kind};
      BOOST_TEST(paths.insert(key.path() + kinds).second);
      BOOST_TEST(!spec.doc.empty());
      BOOST_TEST((spec.doc.find_first_of("|\n") == spec.doc.npos));
      BOOST_TEST(spec.min <= spec.max);
      bool computed = spec.type == key_type::addresses || spec.type == key_type::host;
      bool may_be_left_out = spec.type == key_type::path || key.path() == "providers[].id";
      BOOST_TEST(key.initial_text().empty() == (spec.required || computed || may_be_left_out));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_json_schema_knows_every_key_and_nothing_else) {
  auto root = json::parse(json_schema(configuration_schema()));
  BOOST_TEST(root.at("$schema") == "http://json-schema.org/draft-07/schema#");
  BOOST_TEST(root.at("additionalProperties") == false);
  BOOST_TEST(root.at("properties").size() == configuration_schema().top_level_keys().size());
  auto& node_entry = root["properties"]["cluster"]["properties"]["nodes"]["items"];
  for (auto& key : configuration_schema().keys()) {
    std::string section{key.section};
    const json& object = section == "providers[]" ? root.at("definitions").at("provider")
      : section == "cluster.nodes[]"              ? node_entry
                                                  : root.at("properties").at(section);
    BOOST_TEST_CONTEXT(key.path()) {
      BOOST_TEST(object.at("type") == "object");
      BOOST_TEST(object.at("additionalProperties") == false);
      auto& entry = object.at("properties").at(std::string{key.spec.name});
      auto description = entry.at("description").get<std::string>();
      BOOST_TEST((description.find(key.spec.doc) != description.npos), description);
      BOOST_TEST(entry.contains("default") == !key.initial_text().empty());
      BOOST_TEST((entry.contains("type") || entry.contains("anyOf")));
    }
  }
}

BOOST_AUTO_TEST_CASE(the_json_schema_has_types_bounds_and_defaults) {
  auto root = json::parse(json_schema(configuration_schema()));
  auto& size = property(root, "staging", "size");
  BOOST_TEST(size.at("default") == "256MiB");
  BOOST_TEST(size.at("anyOf").at(0).at("minimum") == 1 << 20);
  BOOST_TEST(size.at("anyOf").at(1).at("type") == "string");
  BOOST_TEST(property(root, "staging", "lock").at("enum") == json({"auto", "off"}));
  auto& movers = property(root, "transport", "movers");
  BOOST_TEST(movers.at("type") == "integer");
  BOOST_TEST(movers.at("maximum") == 64);
  BOOST_TEST(movers.at("default") == 0);
  BOOST_TEST(
    property(root, "transport", "prefer").at("default") == json(transport::driver_names()));
  BOOST_TEST(property(root, "node", "allow_users").at("default") == json::array());
  auto& provider = root.at("definitions").at("provider");
  BOOST_TEST(provider.at("properties").at("checksums").at("default") == true);
  BOOST_TEST(provider.at("required") == json::array({"name"}));
  auto& kinds = configuration_schema().buckets();
  BOOST_TEST_REQUIRE(provider.at("allOf").size() == kinds.size());
  auto rules = [&](std::size_t kind) { return provider.at("allOf").at(kind).at("then"); };
  BOOST_TEST(rules(0).at("required") == json::array());
  BOOST_TEST(rules(0).at("not").at("anyOf").at(0).at("required") == json::array({"path"}));
  for (auto kind : {1, 2})
    BOOST_TEST(rules(kind).at("required") == json::array({"path"}));
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    std::size_t foreign = 0;
    for (auto& key : provider.at("properties").items())
      foreign += !kinds[kind].keys.number_of(key.key()) &&
        !configuration_schema().provider().number_of(key.key());
    BOOST_TEST(rules(kind).at("not").at("anyOf").size() == foreign);
  }
  auto& cluster = root.at("properties").at("cluster");
  BOOST_TEST(cluster.at("required") == json::array({"nodes"}));
  BOOST_TEST(
    cluster.at("properties").at("nodes").at("items").at("required") ==
    json::array({"name", "providers"}));
  BOOST_TEST(root.at("if").at("required") == json::array({"cluster"}));
}

BOOST_AUTO_TEST_SUITE_END()
