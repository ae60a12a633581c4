// Reads constants by the table that names them.
#include <millrace/config/nearest.hpp>
#include <millrace/tools/predict/constants.hpp>

#include <cerrno>
#include <fstream>
#include <vector>

namespace millrace::tools {

namespace {

using actors::broadcast_constants;

result<const actors::broadcast_constant*> find_constant(const std::string& name) {
  std::vector<std::string_view> known;
  for (auto& one : broadcast_constants()) {
    if (one.name == name)
      return &one;
    known.push_back(one.name);
  }
  return fail(
    errc::invalid_argument, "no constant is called '{}'{}", name,
    config::did_you_mean(name, known));
}

status set(actors::broadcast_costs& costs, const std::string& name, const json& value) {
  auto constant = find_constant(name);
  if (!constant)
    return constant.error();
  auto& [_, symbol, member, least, most, meaning] = **constant;
  if (!value.is_number())
    return {errc::invalid_argument, "{}: {} is not a number", name, value.dump()};
  auto number = value.get<double>();
  if (!(number >= least && number <= most))
    return {errc::invalid_argument, "{}: {} is not between {} and {}", name, number, least, most};
  costs.*member = number;
  return {};
}

result<actors::broadcast_costs> parse(std::istream& text) {
  json document;
  try {
    document = json::parse(text);
  } catch (const json::exception& error) { // "[json.exception.NAME] why"
    std::string_view why{error.what()};
    return fail(errc::invalid_argument, "{}", why.substr(why.find("] ") + 2));
  } catch (const std::ios_base::failure& error) { // a directory
    return fail(errc::invalid_argument, "it cannot be read: {}", error.what());
  }
  // What the command has written has them in it.
  if (document.is_object() && document.contains("parameters"))
    document = json(document["parameters"]);
  if (!document.is_object())
    return fail(
      errc::invalid_argument, "not an object of constants, such as {\"host_bytes_per_s\": 1e9}");
  actors::broadcast_costs costs;
  for (auto& [name, value] : document.items())
    if (auto bad = set(costs, name, value); !bad.ok())
      return fail(bad);
  return costs;
}

} // namespace

result<actors::broadcast_costs> read_constants(const std::string& file) {
  std::ifstream text{file};
  if (!text)
    return fail(status_from_errno(errno, "opening the constants " + file));
  auto costs = parse(text);
  if (!costs)
    return fail(costs.error().within(file));
  return costs;
}

json constants_json(const actors::broadcast_costs& costs) {
  json out;
  for (auto& one : broadcast_constants())
    out[std::string{one.name}] = costs.*one.value;
  return out;
}

} // namespace millrace::tools
