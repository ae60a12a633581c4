// Builds the tree from the parser's events, so that every bound holds before memory is taken.
#include <millrace/config/document.hpp>
#include <millrace/core/tensor.hpp>

#include <fmt/core.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <unordered_map>

namespace millrace::config {

namespace {

// Thrown to leave the parser, which cannot be stopped in any other way.
struct refusal {
  mark at;
  std::string what;
};

mark mark_of(const YAML::Mark& at) {
  if (at.line < 0 || at.column < 0)
    return {};
  return {static_cast<std::uint32_t>(at.line) + 1, static_cast<std::uint32_t>(at.column) + 1};
}

} // namespace

class document_builder final : public YAML::EventHandler {
public:
  explicit document_builder(document& out) : out_(out) {}

  bool has_document() const { return documents_ > 0; }

  void OnDocumentStart(const YAML::Mark& at) override {
    if (++documents_ > 1)
      throw refusal{mark_of(at), "a second document; a configuration is one"};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& at, YAML::anchor_t anchor) override {
    leaf({node_kind::null, mark_of(at), {}, {}}, anchor);
  }
  void OnScalar(
    const YAML::Mark& at, const std::string& tag, YAML::anchor_t anchor,
    const std::string& text) override {
    // The parser tags plain (unquoted) scalars with "?". Only in these the words below mean null.
    bool is_null = tag == "?" && (text.empty() || text == "~" || text == "null");
    leaf({is_null ? node_kind::null : node_kind::scalar, mark_of(at), text, {}}, anchor);
  }
  void OnAlias(const YAML::Mark& at, YAML::anchor_t anchor) override {
    auto known = anchors_.find(anchor);
    if (known == anchors_.end())
      throw refusal{mark_of(at), "an alias inside the value it stands for"};
    charge(known->second.values, mark_of(at));
    attach(known->second.index);
  }

  void OnSequenceStart(
    const YAML::Mark& at, const std::string&, YAML::anchor_t anchor,
    YAML::EmitterStyle::value) override {
    open(node_kind::list, mark_of(at), anchor);
  }
  void OnMapStart(
    const YAML::Mark& at, const std::string&, YAML::anchor_t anchor,
    YAML::EmitterStyle::value) override {
    open(node_kind::map, mark_of(at), anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override {
    check_keys(out_.nodes_[open_.back().index]);
    close();
  }

private:
  struct open_node {
    std::uint32_t index;
    YAML::anchor_t anchor;
    std::size_t values_before;
  };
  struct anchored {
    std::uint32_t index;
    std::size_t values;
  };

  void charge(std::size_t values, mark at) {
    values_ += values;
    if (values_ > document_values_max)
      throw refusal{at, fmt::format("more than {} values", document_values_max)};
  }

  std::uint32_t add(document_node node) {
    charge(1, node.at);
    out_.nodes_.push_back(std::move(node));
    return static_cast<std::uint32_t>(out_.nodes_.size() - 1);
  }

  void attach(std::uint32_t index) {
    if (open_.empty())
      out_.root_ = index;
    else
      out_.nodes_[open_.back().index].children.push_back(index);
  }

  void leaf(document_node node, YAML::anchor_t anchor) {
    auto index = add(std::move(node));
    if (anchor != YAML::NullAnchor)
      anchors_[anchor] = {index, 1};
    attach(index);
  }

  void open(node_kind kind, mark at, YAML::anchor_t anchor) {
    if (open_.size() == document_depth_max)
      throw refusal{at, fmt::format("nested more than {} levels deep", document_depth_max)};
    auto before = values_;
    open_.push_back({add({kind, at, {}, {}}), anchor, before});
  }

  void close() {
    auto closed = open_.back();
    open_.pop_back();
    if (closed.anchor != YAML::NullAnchor)
      anchors_[closed.anchor] = {closed.index, values_ - closed.values_before};
    attach(closed.index);
  }

  void check_keys(const document_node& map) {
    std::unordered_map<std::string_view, mark> seen;
    for (std::size_t i = 0; i + 1 < map.children.size(); i += 2) {
      auto& key = out_.nodes_[map.children[i]];
      if (key.kind != node_kind::scalar)
        throw refusal{key.at, "a key must be a word"};
      auto [first, is_new] = seen.emplace(key.text, key.at);
      if (!is_new)
        throw refusal{
          key.at,
          fmt::format(
            "key '{}' is given twice, first in line {}", shown(key.text), first->second.line)};
      // The parser has no good place for a missing value.
      auto& value = out_.nodes_[map.children[i + 1]];
      if (value.kind == node_kind::null)
        value.at = key.at;
    }
  }

  document& out_;
  std::vector<open_node> open_;
  std::unordered_map<YAML::anchor_t, anchored> anchors_;
  std::size_t values_ = 0;
  int documents_ = 0;
};

namespace {

// The parser guesses other encodings from the first bytes, and takes some control characters for
// the end of the file. Such text is refused here.
status check_text(const document& doc, std::string_view text) {
  if (text.size() > document_bytes_max)
    return doc.error({}, fmt::format("larger than {} bytes", document_bytes_max));
  mark at;
  for (std::size_t first = 0; first <= text.size(); ++at.line) {
    auto line = text.substr(first, text.find('\n', first) - first);
    auto bad = std::find_if(line.begin(), line.end(), [](unsigned char c) {
      return (c < 0x20 && c != '\t' && c != '\r') || c == 0x7f;
    });
    if (bad != line.end()) {
      at.column = static_cast<std::uint32_t>(bad - line.begin()) + 1;
      return doc.error(at, "a control character");
    }
    if (!is_utf8(line))
      return doc.error(at, "not UTF-8");
    first += line.size() + 1;
  }
  return {};
}

// Returns the place of the first tab among the blanks that begin a line. The parser's own words
// about it lead elsewhere.
std::optional<mark> first_tab(std::string_view text) {
  mark at;
  for (std::size_t first = 0; first < text.size(); ++at.line) {
    auto line = text.substr(first, text.find('\n', first) - first);
    auto blanks = line.substr(0, line.find_first_not_of(" \t"));
    if (auto tab = blanks.find('\t'); tab != blanks.npos && blanks.size() < line.size()) {
      at.column = static_cast<std::uint32_t>(tab) + 1;
      return at;
    }
    first += line.size() + 1;
  }
  return {};
}

} // namespace

result<document> document::parse(std::string_view text, std::string file_name) {
  document doc;
  doc.file_name_ = std::move(file_name);
  if (auto bad = check_text(doc, text); !bad.ok())
    return fail(std::move(bad));
  document_builder builder{doc};
  try {
    std::istringstream in{std::string{text}};
    YAML::Parser parser{in};
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const refusal& why) {
    return fail(doc.error(why.at, why.what));
  } catch (const YAML::Exception& why) {
    if (auto tab = first_tab(text))
      return fail(doc.error(*tab, "a tab; YAML is indented with spaces"));
    return fail(doc.error(mark_of(why.mark), "not YAML: " + why.msg));
  } catch (const std::exception& why) {
    return fail(doc.error({}, fmt::format("not YAML: {}", why.what())));
  }
  if (!builder.has_document())
    doc.nodes_.emplace_back();
  return doc;
}

status document::error(mark at, std::string_view what) const {
  return {errc::invalid_argument, "{}:{}:{}: {}", file_name_, at.line, at.column, what};
}

std::string shown(std::string_view text) {
  constexpr std::size_t shown_max = 64;
  std::string out{text.substr(0, shown_max)};
  while (!out.empty() && !is_utf8(out) && out.size() + 4 > shown_max)
    out.pop_back(); // a character cut in two
  for (auto& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      c = '?';
  return text.size() > shown_max ? out + "..." : out;
}

} // namespace millrace::config
