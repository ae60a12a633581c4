// Reads and writes the pickle, and knows PyTorch's names of dtypes and storages.
#include <millrace/storage/archive/pickle_reader.hpp>
#include <millrace/storage/archive/state_dict.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

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

class state_reader {
public:
  explicit state_reader(const pickle& from) : from_(from) {}

  status read(pickle_value dictionary, const std::string& prefix, unsigned depth) {
    if (depth > 32)
      return {errc::unsupported, "dictionaries nested more than 32 deep"};
    for (auto& [key, value] : from_.dictionary(dictionary)) {
      if (key.kind != pickle_kind::text && key.kind != pickle_kind::integer)
        return {errc::unsupported, "a key in {} that is no text and no number", shown(prefix)};
      // This also bounds dictionaries that share parts, and grow when they are walked.
      if (++visited_ > layout_tensors_max)
        return {errc::corrupt_data, "a dictionary of more than {} values", layout_tensors_max};
      auto name = prefix + (prefix.empty() ? "" : ".") + text_of(key);
      if (name.size() > tensor_name_bytes_max)
        return {errc::unsupported, "a name of more than {} bytes", tensor_name_bytes_max};
      auto bad = value.kind == pickle_kind::dictionary ? read(value, name, depth + 1)
        : value.kind == pickle_kind::call
        ? read_tensor(value, std::move(name))
        : status{
            errc::unsupported,
            "{} is neither a tensor nor a dictionary; leave it out, or save torch.tensor of it",
            shown(name)};
      if (!bad.ok())
        return bad;
    }
    return {};
  }

  std::vector<state_entry> entries;

private:
  // The keys of optimizers are numbers.
  std::string text_of(pickle_value key) const {
    return key.kind == pickle_kind::text ? std::string{from_.text(key)}
                                         : std::to_string(static_cast<std::int64_t>(key.at));
  }

  static std::string shown(const std::string& name) {
    return name.empty() ? "the dictionary" : name;
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
    entries.push_back(std::move(entry));
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
          "tensor {} has the metadata {}, which is not known here; save a copy "
          "without it",
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
  std::uint64_t visited_ = 0;
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

result<std::vector<state_entry>> read_state_dict(std::string_view pickled) {
  auto values = pickle::read(pickled, globals);
  if (!values)
    return fail(values.error());
  if (values->root().kind != pickle_kind::dictionary)
    return fail(errc::unsupported, "the pickle is no dictionary of tensors; save a state_dict");
  state_reader reader{*values};
  if (auto bad = reader.read(values->root(), "", 0); !bad.ok())
    return fail(bad);
  return std::move(reader.entries);
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
