// Reads and writes the pickle, and knows PyTorch's names of dtypes and storages.
#include <millrace/storage/archive/pickle_reader.hpp>
#include <millrace/storage/archive/state_dict.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_set>

namespace millrace::storage::archive {

namespace {

constexpr std::uint64_t ordered_dict = 0, rebuild_v2 = 1, rebuild_v3 = 2, rebuild_parameter = 3,
                        untyped_storage = 4, storages_begin = 5, storages_end = 17;

// The names that a state dictionary mentions. Older dtypes have a storage class each. Newer dtypes
// lie in untyped storages, and the dtype stands beside the storage.
constexpr std::array<pickle_global, 36> globals = {{
  {"collections", "OrderedDict"},
  {"torch._utils", "_rebuild_tensor_v2"},
  {"torch._utils", "_rebuild_tensor_v3"},
  {"torch._utils", "_rebuild_parameter"},
  {"torch.storage", "UntypedStorage"},
  {"torch", "BoolStorage"},
  {"torch", "ByteStorage"},
  {"torch", "CharStorage"},
  {"torch", "ShortStorage"},
  {"torch", "IntStorage"},
  {"torch", "LongStorage"},
  {"torch", "HalfStorage"},
  {"torch", "BFloat16Storage"},
  {"torch", "FloatStorage"},
  {"torch", "DoubleStorage"},
  {"torch", "ComplexFloatStorage"},
  {"torch", "ComplexDoubleStorage"},
  {"torch", "bool"},
  {"torch", "uint8"},
  {"torch", "int8"},
  {"torch", "int16"},
  {"torch", "int32"},
  {"torch", "int64"},
  {"torch", "float16"},
  {"torch", "bfloat16"},
  {"torch", "float32"},
  {"torch", "float64"},
  {"torch", "complex64"},
  {"torch", "complex128"},
  {"torch", "uint16"},
  {"torch", "uint32"},
  {"torch", "uint64"},
  {"torch", "float8_e5m2"},
  {"torch", "float8_e4m3fn"},
  {"torch", "float8_e8m0fnu"},
  {"torch", "UntypedStorage"},
}};

constexpr std::array<dtype, storages_end - storages_begin> storage_types = {
  dtype::boolean, dtype::u8,   dtype::i8,  dtype::i16, dtype::i32, dtype::i64,
  dtype::f16,     dtype::bf16, dtype::f32, dtype::f64, dtype::c64, dtype::c128};

std::optional<dtype> type_of_storage(std::uint64_t global) {
  if (global == untyped_storage || globals[global].name == "UntypedStorage")
    return dtype::u8;
  if (global < storages_begin || global >= storages_end)
    return std::nullopt;
  return storage_types[global - storages_begin];
}

// What is below a value that shares parts grows when it is walked, so the steps are counted.
constexpr std::uint64_t visits_max = 4 * layout_tensors_max;
constexpr unsigned nesting_max = 32;

// Names of these are Millrace's own in metadata.
constexpr std::string_view own_prefix = "millrace.";

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(); }

std::string json_text(double value) {
  if (std::isnan(value))
    return "NaN";
  if (std::isinf(value))
    return value < 0 ? "-Infinity" : "Infinity";
  return nlohmann::json(value).dump();
}

class state_reader {
public:
  explicit state_reader(const pickle& from) : from_(from) {}

  status read(pickle_value container, const std::string& prefix, unsigned depth) {
    auto parts = parts_of(container, depth);
    if (!parts)
      return parts.error().within(shown(prefix));
    for (auto& [key, value] : *parts) {
      auto name = prefix.empty() ? key : fmt::format("{}.{}", prefix, key);
      if (name.size() > tensor_name_bytes_max)
        return {errc::unsupported, "a name of more than {} bytes", tensor_name_bytes_max};
      if (auto bad = read_value(value, std::move(name), depth); !bad.ok())
        return bad;
    }
    return {};
  }

  state_dict found;

private:
  using part_list = std::vector<std::pair<std::string, pickle_value>>;

  static std::string shown(const std::string& name) {
    return name.empty() ? "the dictionary" : name.substr(0, 200);
  }

  // Returns what a dictionary has under its keys, or a list or tuple at its places.
  result<part_list> parts_of(pickle_value container, unsigned depth) {
    if (depth > nesting_max)
      return fail(errc::unsupported, "it is nested more than {} deep", nesting_max);
    part_list all;
    if (container.kind == pickle_kind::dictionary) {
      for (auto& [key, value] : from_.dictionary(container)) {
        auto name = name_of(key);
        if (!name)
          return fail(name.error());
        all.emplace_back(std::move(*name), value);
      }
    } else {
      auto items = container.kind == pickle_kind::list ? std::span{from_.list(container)}
                                                       : from_.tuple(container);
      for (std::size_t i = 0; i < items.size(); ++i)
        all.emplace_back(std::to_string(i), items[i]);
    }
    visits_ += all.size();
    if (visits_ > visits_max)
      return fail(errc::corrupt_data, "it has more than {} values", visits_max);
    return all;
  }

  // The keys of optimizers are numbers.
  result<std::string> name_of(pickle_value key) const {
    if (key.kind == pickle_kind::integer)
      return std::to_string(static_cast<std::int64_t>(key.at));
    if (key.kind != pickle_kind::text)
      return fail(errc::unsupported, "it has a key that is no text and no number");
    if (!is_utf8(from_.text(key)))
      return fail(errc::unsupported, "it has a key that is not UTF-8 without NUL");
    return std::string{from_.text(key)};
  }

  status read_value(pickle_value value, std::string name, unsigned depth) {
    if (value.kind == pickle_kind::call)
      return read_tensor(value, std::move(name));
    std::string text;
    auto plain = write_json(value, text, depth + 1);
    if (!plain)
      return plain.error().within(shown(name));
    return *plain ? keep(std::move(name), std::move(text)) : read(value, name, depth + 1);
  }

  status keep(std::string name, std::string text) {
    plain_bytes_ += text.size();
    if (plain_bytes_ > plain_bytes_max)
      return {
        errc::unsupported, "{}: more than {} bytes of values that are no tensors", shown(name),
        plain_bytes_max};
    if (name.empty() || name.starts_with(own_prefix) || !names_.insert(name).second)
      return {
        errc::unsupported, "a value that is no tensor cannot be called \"{}\" {}", shown(name),
        name.empty() || name.starts_with(own_prefix) ? "here" : "twice"};
    found.values.emplace_back(std::move(name), std::move(text));
    return {};
  }

  // Appends a value as JSON. Returns false when there is a tensor in it.
  result<bool> write_json(pickle_value value, std::string& out, unsigned depth) {
    switch (value.kind) {
    case pickle_kind::none:
      out += "null";
      return true;
    case pickle_kind::boolean:
      out += value.at == 1 ? "true" : "false";
      return true;
    case pickle_kind::integer:
      out += std::to_string(static_cast<std::int64_t>(value.at));
      return true;
    case pickle_kind::fraction:
      out += json_text(std::bit_cast<double>(value.at));
      return true;
    case pickle_kind::text:
      if (!is_utf8(from_.text(value)))
        return fail(errc::unsupported, "it is a text that is not UTF-8 without NUL");
      out += json_text(from_.text(value));
      return true;
    case pickle_kind::tuple:
    case pickle_kind::list:
    case pickle_kind::dictionary:
      return write_parts(value, out, depth);
    case pickle_kind::call:
      return false;
    default:
      return fail(
        errc::unsupported,
        "it is neither a tensor nor a number, text, list or dictionary; leave it out, or save it "
        "as "
        "text");
    }
  }

  result<bool> write_parts(pickle_value container, std::string& out, unsigned depth) {
    auto parts = parts_of(container, depth);
    if (!parts)
      return fail(parts.error());
    bool named = container.kind == pickle_kind::dictionary;
    out += named ? '{' : '[';
    auto begin = out.size();
    for (auto& [key, value] : *parts) {
      if (out.size() > begin)
        out += ',';
      if (named)
        out += json_text(key) + ":";
      if (auto plain = write_json(value, out, depth + 1); !plain || !*plain)
        return plain;
      if (out.size() > plain_bytes_max)
        return fail(errc::unsupported, "it has more than {} bytes as text", plain_bytes_max);
    }
    out += named ? '}' : ']';
    return true;
  }

  // Every argument is known: one that is left out may change the values.
  status read_tensor(pickle_value value, std::string name) {
    auto [callee, arguments] = from_.call(value);
    auto all = from_.tuple(arguments);
    if (callee == rebuild_parameter) {
      // A parameter wraps a tensor, never another parameter.
      if (all.size() != 3 || all[0].kind != pickle_kind::call || !is_trained(all[1], all[2]))
        return malformed(name);
      std::tie(callee, arguments) = from_.call(all[0]);
      all = from_.tuple(arguments);
    }
    bool v3 = callee == rebuild_v3;
    auto needed = v3 ? 7u : 6u;
    if ((callee != rebuild_v2 && !v3) || all.size() < needed || all.size() > needed + 1)
      return malformed(name);
    state_entry entry;
    entry.tensor.name = std::move(name);
    auto bad = read_storage(all[0], entry);
    if (!bad.ok())
      return bad;
    if (
      all[1].kind != pickle_kind::integer || !read_extents(all[2], entry.tensor.shape) ||
      !read_extents(all[3], entry.steps) || entry.steps.size() != entry.tensor.shape.size() ||
      !is_trained(all[4], all[5]))
      return malformed(entry.tensor.name);
    entry.offset = all[1].at;
    if (v3) {
      auto type = all[6].kind == pickle_kind::global ? parse_dtype(globals[all[6].at].name)
                                                     : fail(errc::corrupt_data, "");
      if (!type)
        return malformed(entry.tensor.name);
      entry.tensor.type = *type;
    }
    if (all.size() > needed)
      if (bad = read_marks(all[needed], entry); !bad.ok())
        return bad;
    found.tensors.push_back(std::move(entry));
    return {};
  }

  // True for whether a tensor requires a gradient, and for its hooks, of which none are saved.
  bool is_trained(pickle_value requires_grad, pickle_value hooks) const {
    return requires_grad.kind == pickle_kind::boolean && hooks.kind == pickle_kind::dictionary &&
      from_.dictionary(hooks).empty();
  }

  // Reads {"conj": True, "neg": True}, either or both.
  status read_marks(pickle_value value, state_entry& entry) const {
    if (value.kind != pickle_kind::dictionary)
      return malformed(entry.tensor.name);
    for (auto& [key, set] : from_.dictionary(value)) {
      auto mark = key.kind == pickle_kind::text ? from_.text(key) : "";
      if ((mark != "conj" && mark != "neg") || set.kind != pickle_kind::boolean || set.at != 1)
        return {
          errc::unsupported,
          "tensor {} has the metadata {}, which is not known here; save a copy without it",
          entry.tensor.name, mark.substr(0, 100)};
      (mark == "conj" ? entry.conjugated : entry.negated) = true;
    }
    return {};
  }

  // Reads ('storage', class, key, place, elements).
  status read_storage(pickle_value value, state_entry& entry) {
    auto& name = entry.tensor.name;
    if (value.kind != pickle_kind::persistent)
      return malformed(name);
    auto id = from_.tuple(value);
    if (
      id.size() != 5 || id[0].kind != pickle_kind::text || from_.text(id[0]) != "storage" ||
      id[1].kind != pickle_kind::global || id[2].kind != pickle_kind::text ||
      id[4].kind != pickle_kind::integer)
      return malformed(name);
    auto type = type_of_storage(id[1].at);
    if (!type)
      return malformed(name);
    entry.tensor.type = *type;
    entry.key = from_.text(id[2]);
    if (__builtin_mul_overflow(id[4].at, bits_per_element(*type) / 8, &entry.storage_bytes))
      return malformed(name);
    return {};
  }

  bool read_extents(pickle_value value, std::vector<std::uint64_t>& into) {
    if (value.kind != pickle_kind::tuple || value.count > tensor_rank_max)
      return false;
    for (auto& one : from_.tuple(value)) {
      if (one.kind != pickle_kind::integer || one.at >> 63 != 0)
        return false;
      into.push_back(one.at);
    }
    return true;
  }

  static status malformed(const std::string& name) {
    return {
      errc::corrupt_data, "the pickle of {} is no tensor as PyTorch saves it", name.substr(0, 200)};
  }

  const pickle& from_;
  std::uint64_t visits_ = 0;
  std::uint64_t plain_bytes_ = 0;
  std::unordered_set<std::string> names_; // the names of values
};

/// Writes opcodes, with a memo for what is repeated.
class pickle_writer {
public:
  pickle_writer() { text_ = "\x80\x02"; }

  void op(std::string_view opcodes) { text_ += opcodes; }

  void global(std::uint64_t index) {
    auto& g = globals[index];
    remembered("c" + std::string{g.module} + "\n" + std::string{g.name} + "\n");
  }
  void common_text(std::string_view text) { remembered(binary_text(text)); }
  void text(std::string_view text) { text_ += binary_text(text); }

  void number(std::uint64_t value) {
    if (value < 256) {
      text_ += 'K';
      little_endian(text_, value, 1);
    } else if (value <= INT32_MAX) {
      text_ += 'J';
      little_endian(text_, value, 4);
    } else {
      text_ += "\x8a\x08"; // LONG1
      little_endian(text_, value, 8);
    }
  }

  void tuple(const std::vector<std::uint64_t>& values) {
    text_ += '(';
    for (auto value : values)
      number(value);
    text_ += 't';
  }

  std::string take() { return std::move(text_); }

private:
  static void little_endian(std::string& out, std::uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i)
      out += static_cast<char>(value >> 8 * i);
  }

  static std::string binary_text(std::string_view text) {
    std::string out = "X";
    little_endian(out, text.size(), 4);
    return out + std::string{text};
  }

  void remembered(const std::string& written) {
    auto [at, first] = memo_.try_emplace(written, memo_.size());
    text_ += first ? written + "q" : "h";
    little_endian(text_, at->second, 1);
  }

  std::string text_;
  std::map<std::string, std::size_t> memo_; // bounded by the tables above: below 256
};

// Returns strides as PyTorch counts them: an extent of 0 counts as 1.
strides torch_strides(std::vector<std::uint64_t> shape) {
  for (auto& extent : shape)
    extent = std::max<std::uint64_t>(extent, 1);
  return c_order(shape);
}

struct torch_type {
  std::uint64_t storage;              // a global
  std::optional<std::uint64_t> dtype; // a global; absent if the storage says it
};

std::optional<torch_type> torch_type_of(dtype type) {
  auto found = std::find(storage_types.begin(), storage_types.end(), type);
  if (found != storage_types.end())
    return torch_type{
      storages_begin + static_cast<std::uint64_t>(found - storage_types.begin()), {}};
  for (std::uint64_t i = storages_end; i < globals.size(); ++i)
    if (auto named = parse_dtype(globals[i].name); named && *named == type)
      return torch_type{untyped_storage, i};
  return std::nullopt;
}

void write_tensor(
  pickle_writer& out, const tensor_desc& tensor, const torch_type& type, std::uint64_t number) {
  auto bytes = size_bytes(tensor).value_or(0);
  out.text(tensor.name);
  out.global(type.dtype ? rebuild_v3 : rebuild_v2);
  out.op("((");
  out.common_text("storage");
  out.global(type.storage);
  out.text(std::to_string(number));
  out.common_text("cpu");
  out.number(type.dtype ? bytes : bytes / (bits_per_element(tensor.type) / 8));
  out.op("tQK");
  out.op(std::string_view{"\0", 1}); // the offset
  out.tuple(tensor.shape);
  out.tuple(torch_strides(tensor.shape));
  out.op("\x89"); // requires no gradient
  out.global(ordered_dict);
  out.op(")R"); // no hooks
  if (type.dtype)
    out.global(*type.dtype);
  out.op("tR");
}

} // namespace

result<state_dict> read_state_dict(std::string_view pickled) {
  auto values = pickle::read(pickled, globals);
  if (!values)
    return fail(values.error());
  if (values->root().kind != pickle_kind::dictionary)
    return fail(errc::unsupported, "the pickle is no dictionary; save a state_dict");
  state_reader reader{*values};
  if (auto bad = reader.read(values->root(), "", 0); !bad.ok())
    return fail(bad);
  return std::move(reader.found);
}

result<std::string> write_state_dict(const layout& tensors) {
  pickle_writer out;
  out.global(ordered_dict);
  out.op(")R(");
  for (std::uint64_t i = 0; i < tensors.tensors.size(); ++i) {
    auto& tensor = tensors.tensors[i];
    auto type = torch_type_of(tensor.type);
    if (!type)
      return fail(
        errc::unsupported, "tensor {}: PyTorch has no {}; use safetensors", tensor.name,
        to_string(tensor.type));
    write_tensor(out, tensor, *type, i);
  }
  out.op("u.");
  return out.take();
}

} // namespace millrace::storage::archive
