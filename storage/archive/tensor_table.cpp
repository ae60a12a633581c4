// Reads the table as events, so that a small text cannot become a large tree.
#include <millrace/storage/archive/tensor_table.hpp>

#include <nlohmann/json.hpp>

#include <unordered_set>

namespace millrace::storage::archive {

namespace {

using nlohmann::json;

constexpr auto metadata_key = "__metadata__";

class table_reader final : public json::json_sax_t {
public:
  tensor_table table;
  std::string why;

  bool null() override { return refuse("a null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == place::shape && shape().size() < tensor_rank_max) {
      shape().push_back(value);
      return true;
    }
    if (at_ != place::offsets || offsets_ >= 2)
      return refuse("a number");
    (offsets_++ == 0 ? table.places.back().begin : table.places.back().end) = value;
    return true;
  }

  bool string(string_t& value) override {
    if (at_ == place::metadata_value) {
      table.metadata.back().second = std::move(value);
      at_ = place::metadata;
      return true;
    }
    if (at_ != place::dtype)
      return refuse("a text");
    auto type = parse_dtype(value);
    // Only the spelling of the format is accepted, not "float32". It has no complex128.
    if (!type || to_string(*type) != value || type == dtype::c128)
      return refuse("an unknown dtype, " + value.substr(0, 64));
    table.tensors.tensors.back().type = *type;
    at_ = place::tensor;
    return true;
  }

  bool start_object(std::size_t) override {
    if (at_ == place::start)
      return enter(place::top);
    if (at_ == place::metadata_start)
      return enter(place::metadata);
    if (at_ != place::tensor_start)
      return refuse("an object");
    fields_ = 0;
    return enter(place::tensor);
  }

  bool key(string_t& name) override {
    switch (at_) {
    case place::top:
      return top_key(name);
    case place::metadata:
      table.metadata.emplace_back(name, "");
      return enter(place::metadata_value) &&
        (keys_.insert(name).second ||
         refuse(fmt::format("the metadata {} twice", name.substr(0, 64))));
    case place::tensor:
      return field_key(name);
    default:
      return refuse("a key");
    }
  }

  bool end_object() override {
    if (at_ == place::metadata)
      return enter(place::top);
    if (at_ == place::top)
      return enter(place::end);
    if (fields_ != 7)
      return refuse("a tensor without dtype, shape or data_offsets");
    return enter(place::top);
  }

  bool start_array(std::size_t) override {
    if (at_ == place::shape_start)
      return enter(place::shape);
    if (at_ == place::offsets_start)
      return enter(place::offsets);
    return refuse("a list");
  }

  bool end_array() override {
    if (at_ == place::offsets && offsets_ != 2)
      return refuse("data_offsets without a beginning and an end");
    return enter(place::tensor);
  }

  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    why = fmt::format("no JSON at byte {}", at);
    return false;
  }

private:
  enum class place {
    start,
    top,
    metadata_start,
    metadata,
    metadata_value,
    tensor_start,
    tensor,
    dtype,
    shape_start,
    shape,
    offsets_start,
    offsets,
    end
  };

  std::vector<std::uint64_t>& shape() { return table.tensors.tensors.back().shape; }

  bool enter(place next) {
    at_ = next;
    return true;
  }

  bool refuse(const std::string& what) {
    auto& all = table.tensors.tensors;
    why = fmt::format(
      "{} where it may not be{}", what, all.empty() ? "" : ", tensor " + all.back().name);
    return false;
  }

  bool top_key(const std::string& name) {
    if (name == metadata_key) {
      if (metadata_seen_)
        return refuse("the metadata twice");
      metadata_seen_ = true;
      return enter(place::metadata_start);
    }
    if (table.tensors.tensors.size() == layout_tensors_max)
      return refuse("one tensor too many");
    if (!names_.insert(name).second)
      return refuse(fmt::format("the name {} twice", name.substr(0, 64)));
    table.tensors.tensors.push_back({name, dtype::u8, {}});
    table.places.emplace_back();
    return enter(place::tensor_start);
  }

  bool field_key(const std::string& name) {
    auto bit = name == "dtype" ? 1u : name == "shape" ? 2u : name == "data_offsets" ? 4u : 0u;
    if (bit == 0 || (fields_ & bit) != 0)
      return refuse("the field " + name.substr(0, 64));
    fields_ |= bit;
    offsets_ = 0;
    return enter(bit == 1u ? place::dtype : bit == 2u ? place::shape_start : place::offsets_start);
  }

  place at_ = place::start;
  unsigned fields_ = 0; // those of the current tensor: 1 dtype, 2 shape, 4 data_offsets
  unsigned offsets_ = 0;
  bool metadata_seen_ = false;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> keys_;
};

std::string quoted(const std::string& text) { return json(text).dump(); }

} // namespace

std::string to_json(const tensor_table& table) {
  std::string text = "{";
  if (!table.metadata.empty()) {
    text += quoted(metadata_key) + ":{";
    for (auto& [key, value] : table.metadata)
      text += quoted(key) + ":" + quoted(value) + ",";
    text.back() = '}';
  }
  for (std::size_t i = 0; i < table.tensors.tensors.size(); ++i) {
    auto& tensor = table.tensors.tensors[i];
    text += text.size() > 1 ? "," : "";
    text += quoted(tensor.name) + ":{\"dtype\":\"" + std::string{to_string(tensor.type)};
    text += fmt::format(
      "\",\"shape\":{},\"data_offsets\":[{},{}]}}", json(tensor.shape).dump(),
      table.places[i].begin, table.places[i].end);
  }
  return text + "}";
}

result<tensor_table> parse_tensor_table(std::string_view text) {
  if (text.size() > tensor_table_bytes_max)
    return fail(errc::corrupt_data, "the table of tensors is larger than 100 MB");
  // The parser would take it for the end.
  if (text.find('\0') != std::string_view::npos)
    return fail(
      errc::corrupt_data, "the table of tensors has a byte 0; it is padded with spaces only");
  table_reader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader))
    return fail(errc::corrupt_data, "the table of tensors has {}", reader.why);
  if (auto bad = validate(reader.table.tensors); !bad.ok())
    return fail(errc::corrupt_data, bad.detail());
  return std::move(reader.table);
}

} // namespace millrace::storage::archive
