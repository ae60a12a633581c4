// The text of a loader's state. Numbers of 64 bits stay whole numbers in it.
#include <millrace/core/digest.hpp>
#include <millrace/runtime/client/loader_state.hpp>

#include <nlohmann/json.hpp>

#include <charconv>

namespace millrace {

namespace {

using json = nlohmann::ordered_json;

constexpr std::uint64_t version = 1;
constexpr std::size_t text_bytes_max = 4096;

status wrong(std::string_view what) {
  return {errc::invalid_argument, "the state of a loader: {}", what};
}

// Reads a number from a JSON document.
status take(const json& from, const char* key, std::uint64_t& into) {
  auto found = from.find(key);
  if (found == from.end() || !found->is_number_unsigned())
    return wrong(fmt::format("\"{}\" is missing, or no whole number", key));
  into = found->get<std::uint64_t>();
  return {};
}

status take_text(const json& from, const char* key, std::string& into) {
  auto found = from.find(key);
  if (found == from.end() || !found->is_string())
    return wrong(fmt::format("\"{}\" is missing, or no text", key));
  into = found->get<std::string>();
  return {};
}

status take_identity(const json& from, std::uint64_t& into) {
  std::string text;
  if (auto bad = take_text(from, "set", text); !bad.ok())
    return bad;
  auto [end, why] = std::from_chars(text.data(), text.data() + text.size(), into, 16);
  return why == std::errc{} && end == text.data() + text.size() && text.size() == 16
    ? status{}
    : wrong("\"set\" is no identity of a working set, which has 16 hexadecimal digits");
}

} // namespace

std::string loader_state::to_json() const {
  return json{
    {"version", version},
    {"set", fmt::format("{:016x}", set)},
    {"samples", samples},
    {"seed", seed},
    {"epoch", epoch},
    {"position", position},
    {"shuffle", shuffle.to_string()}}
    .dump();
}

result<loader_state> loader_state::parse(std::string_view text) {
  if (text.size() > text_bytes_max)
    return fail(wrong(fmt::format("{} bytes; it has at most {}", text.size(), text_bytes_max)));
  auto document = json::parse(text, nullptr, false);
  if (!document.is_object())
    return fail(wrong("the text is no JSON object"));
  std::uint64_t made_by = 0;
  std::string shuffle;
  loader_state out;
  for (auto& bad :
       {take(document, "version", made_by), take_identity(document, out.set),
        take(document, "samples", out.samples), take(document, "seed", out.seed),
        take(document, "epoch", out.epoch), take(document, "position", out.position),
        take_text(document, "shuffle", shuffle)})
    if (!bad.ok())
      return fail(bad);
  if (made_by != version)
    return fail(wrong(fmt::format("version {}; this program reads {}", made_by, version)));
  auto kind = shuffle_kind::parse(shuffle);
  if (!kind)
    return fail(wrong(kind.error().detail()));
  out.shuffle = *kind;
  return out;
}

} // namespace millrace
