// A pickle machine that only builds values: a stack, a memo, and a switch over the few opcodes it
// knows.
#include <millrace/core/assert.hpp>
#include <millrace/storage/archive/pickle_reader.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

namespace millrace::storage::archive {

namespace {

constexpr std::size_t stack_max = 1u << 20;
constexpr std::size_t values_max = 1u << 25;
constexpr std::size_t containers_max = 1u << 22;

std::string hex(unsigned char opcode) {
  constexpr std::string_view digits = "0123456789abcdef";
  return std::string{"0x"} + digits[opcode >> 4] + digits[opcode & 15];
}

struct opcode_row {
  unsigned char code;
  std::string_view name;
};
// Opcodes of other pickles, for messages.
constexpr std::array<opcode_row, 20> refused = {{
  {'i', "INST"},      {'o', "OBJ"},
  {0x81, "NEWOBJ"},   {0x92, "NEWOBJ_EX"},
  {'l', "LIST"},      {'F', "FLOAT"},
  {'d', "DICT"},      {0x8f, "EMPTY_SET"},
  {'B', "BINBYTES"},  {'C', "SHORT_BINBYTES"},
  {'P', "PERSID"},    {0x82, "EXT1"},
  {0x83, "EXT2"},     {0x84, "EXT4"},
  {'0', "POP"},       {'2', "DUP"},
  {'T', "BINSTRING"}, {'U', "SHORT_BINSTRING"},
  {'I', "INT"},       {'L', "LONG"},
}};

std::string name_of(unsigned char opcode) {
  auto found =
    std::find_if(refused.begin(), refused.end(), [&](auto& row) { return row.code == opcode; });
  return found == refused.end() ? hex(opcode) : fmt::format("{} ({})", found->name, hex(opcode));
}

} // namespace

class pickle_machine {
public:
  pickle_machine(std::string_view bytes, std::span<const pickle_global> globals)
    : globals_(globals) {
    out_.bytes_ = bytes;
  }

  result<pickle> run() {
    while (!stopped_) {
      auto opcode = number(1);
      if (!opcode || !step(static_cast<unsigned char>(*opcode))) {
        if (why_.ok())
          why_ = {errc::corrupt_data, "the pickle is malformed at byte {}", at_};
        return fail(why_);
      }
      if (
        stack_.size() > stack_max || out_.values_.size() + items_ > values_max ||
        out_.dictionaries_.size() + out_.lists_.size() > containers_max)
        return fail(errc::corrupt_data, "the pickle has more values than a state dictionary");
    }
    return std::move(out_);
  }

private:
  bool step(unsigned char opcode) {
    switch (opcode) {
    case 0x80: // PROTO
      return number(1).has_value();
    case 0x95: // FRAME: says only how far a reader may read ahead
      return number(8).has_value();
    case '.':
      stopped_ = true;
      return marks_.empty() && stack_.size() == 1 && pop(out_.root_);
    case '(':
      marks_.push_back(stack_.size());
      return marks_.size() <= stack_max;
    case 'N':
      return push({});
    case 0x88: // NEWTRUE
    case 0x89: // NEWFALSE
      return push({pickle_kind::boolean, 0, opcode == 0x88 ? 1u : 0u});
    case 'R':
      return reduce();
    case 'b':
      return build();
    case 'Q': // BINPERSID
      return persist();
    default:
      return step_number(opcode) || step_text(opcode) || step_group(opcode) || step_memo(opcode) ||
        refuse(opcode);
    }
  }

  // A failure of a known opcode has set `why_` or `known_`, and is not reported as unknown.
  bool refuse(unsigned char opcode) {
    if (why_.ok() && !known_)
      why_ = {
        errc::unsupported,
        "the pickle has the opcode {}{}, which is not read here: save a state_dict(), or dense "
        "tensors, numbers, texts and lists",
        name_of(opcode), beside_what()};
    return false;
  }

  // Returns the key of the value that was expected, if there is one.
  std::string beside_what() const {
    if (stack_.empty() || stack_.back().kind != pickle_kind::text)
      return {};
    return fmt::format(" (for {})", out_.text(stack_.back()).substr(0, 100));
  }

  bool step_number(unsigned char opcode) {
    switch (opcode) {
    case 'K':
      return known(push_number(number(1)));
    case 'M':
      return known(push_number(number(2)));
    case 'J': {
      auto value = number(4);
      return known(push_number(
        value ? std::optional{static_cast<std::uint64_t>(
                  static_cast<std::int64_t>(static_cast<std::int32_t>(*value)))}
              : value));
    }
    case 0x8a: { // LONG1: as many bytes as it says, two's complement
      auto count = number(1);
      if (count && *count > 8)
        why_ = {errc::unsupported, "the pickle has a number of more than 64 bits{}", beside_what()};
      if (!count || *count > 8)
        return known(false);
      auto value = number(static_cast<unsigned>(*count));
      auto bits = static_cast<unsigned>(*count) * 8;
      if (value && bits > 0 && bits < 64 && (*value >> (bits - 1) & 1) != 0)
        *value |= ~0ull << bits;
      return known(push_number(value));
    }
    case 'G': // BINFLOAT: big-endian
      return known(push_fraction(number(8)));
    default:
      return false;
    }
  }

  bool step_text(unsigned char opcode) {
    switch (opcode) {
    case 'X': // BINUNICODE
      return known(push_text(number(4)));
    case 0x8c: // SHORT_BINUNICODE
      return known(push_text(number(1)));
    case 'c': { // GLOBAL
      auto module = line();
      auto name = line();
      return known(module && name && push_global(*module, *name));
    }
    case 0x93: { // STACK_GLOBAL
      pickle_value name, module;
      return known(
        pop(name) && pop(module) && name.kind == pickle_kind::text &&
        module.kind == pickle_kind::text && push_global(out_.text(module), out_.text(name)));
    }
    default:
      return false;
    }
  }

  bool step_group(unsigned char opcode) {
    switch (opcode) {
    case ')':
      return known(push_tuple(0));
    case 0x85: // TUPLE1, TUPLE2, TUPLE3
    case 0x86:
    case 0x87:
      return known(push_tuple(opcode - 0x84u));
    case 't': {
      auto count = pop_mark();
      return known(count && push_tuple(*count));
    }
    case ']':
      return known(push_list());
    case 'a':
      return known(append(1));
    case 'e': {
      auto count = pop_mark();
      return known(count && append(*count));
    }
    case '}':
      return known(push_dictionary());
    case 's':
      return known(set_items(2));
    case 'u': {
      auto count = pop_mark();
      return known(count && set_items(*count));
    }
    default:
      return false;
    }
  }

  bool step_memo(unsigned char opcode) {
    switch (opcode) {
    case 'q': // BINPUT
      return known(put(number(1)));
    case 'r': // LONG_BINPUT
      return known(put(number(4)));
    case 0x94: // MEMOIZE
      return known(put(memo_.size()));
    case 'h': // BINGET
      return known(get(number(1)));
    case 'j': // LONG_BINGET
      return known(get(number(4)));
    default:
      return false;
    }
  }

  bool known(bool good) {
    known_ = !good;
    return good;
  }

  std::optional<std::uint64_t> number(unsigned bytes) {
    if (bytes > out_.bytes_.size() - at_)
      return std::nullopt;
    std::uint64_t value = 0;
    std::memcpy(&value, out_.bytes_.data() + at_, bytes);
    at_ += bytes;
    return value;
  }

  std::optional<std::string_view> line() {
    auto end = out_.bytes_.find('\n', at_);
    if (end == std::string_view::npos)
      return std::nullopt;
    auto text = out_.bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  bool push(pickle_value value) {
    stack_.push_back(value);
    return true;
  }

  // Takes a value, but none below the last mark.
  bool pop(pickle_value& value) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
      return false;
    value = stack_.back();
    stack_.pop_back();
    return true;
  }

  // Removes the last mark and returns the number of values above it.
  std::optional<std::size_t> pop_mark() {
    if (marks_.empty() || marks_.back() > stack_.size())
      return std::nullopt;
    auto count = stack_.size() - marks_.back();
    marks_.pop_back();
    return count;
  }

  bool push_number(std::optional<std::uint64_t> value) {
    return value && push({pickle_kind::integer, 0, *value});
  }

  bool push_fraction(std::optional<std::uint64_t> value) {
    return value && push({pickle_kind::fraction, 0, __builtin_bswap64(*value)});
  }

  bool push_text(std::optional<std::uint64_t> length) {
    if (!length || *length > out_.bytes_.size() - at_)
      return false;
    push({pickle_kind::text, static_cast<std::uint32_t>(*length), at_});
    at_ += *length;
    return true;
  }

  bool push_global(std::string_view module, std::string_view name) {
    for (std::size_t i = 0; i < globals_.size(); ++i)
      if (globals_[i].module == module && globals_[i].name == name)
        return push({pickle_kind::global, 0, i});
    why_ = {
      errc::unsupported,
      "the pickle mentions {}.{}{}, which is not read here: save a state_dict(), or dense tensors, "
      "numbers, texts and lists",
      module.substr(0, 100), name.substr(0, 100), beside_what()};
    return false;
  }

  bool push_tuple(std::size_t count) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count)
      return false;
    auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    pickle_value made{pickle_kind::tuple, static_cast<std::uint32_t>(count), out_.values_.size()};
    out_.values_.insert(out_.values_.end(), begin, stack_.end());
    stack_.erase(begin, stack_.end());
    return push(made);
  }

  bool push_list() {
    out_.lists_.emplace_back();
    return push({pickle_kind::list, 0, out_.lists_.size() - 1});
  }

  bool append(std::size_t count) {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count + 1)
      return false;
    auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    auto target = *(begin - 1);
    if (target.kind != pickle_kind::list)
      return false;
    auto& items = out_.lists_[target.at];
    items.insert(items.end(), begin, stack_.end());
    items_ += count;
    stack_.erase(begin, stack_.end());
    return true;
  }

  bool push_dictionary() {
    out_.dictionaries_.emplace_back();
    return push({pickle_kind::dictionary, 0, out_.dictionaries_.size() - 1});
  }

  bool set_items(std::size_t count) {
    if (count % 2 != 0 || stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count + 1)
      return false;
    auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    auto target = *(begin - 1);
    if (target.kind != pickle_kind::dictionary)
      return false;
    for (auto at = begin; at != stack_.end(); at += 2)
      out_.dictionaries_[target.at].emplace_back(*at, *(at + 1));
    items_ += count;
    stack_.erase(begin, stack_.end());
    return true;
  }

  bool reduce() {
    pickle_value arguments, callee;
    if (
      !pop(arguments) || !pop(callee) || arguments.kind != pickle_kind::tuple ||
      callee.kind != pickle_kind::global)
      return false;
    if (callee.at == 0)
      return arguments.count == 0 && push_dictionary();
    pickle_value made{pickle_kind::call, 2, out_.values_.size()};
    out_.values_.push_back(callee);
    out_.values_.push_back(arguments);
    return push(made);
  }

  // The one attribute that modules give an OrderedDict has their versions. Any other could have
  // values that count.
  bool build() {
    pickle_value attributes;
    if (
      !pop(attributes) || attributes.kind != pickle_kind::dictionary || stack_.empty() ||
      stack_.back().kind != pickle_kind::dictionary)
      return false;
    for (auto& [key, value] : out_.dictionary(attributes)) {
      auto name = key.kind == pickle_kind::text ? out_.text(key) : "";
      if (name != "_metadata") {
        why_ = {
          errc::unsupported,
          "the pickle has a dictionary with the attribute {}; save the dictionary without it",
          name.substr(0, 100)};
        return false;
      }
    }
    return true;
  }

  bool persist() {
    pickle_value id;
    if (!pop(id) || id.kind != pickle_kind::tuple)
      return false;
    id.kind = pickle_kind::persistent;
    return push(id);
  }

  // Picklers number their memo entries one after the other.
  bool put(std::optional<std::uint64_t> index) {
    if (!index || *index > memo_.size() || stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
      return false;
    if (*index == memo_.size())
      memo_.push_back(stack_.back());
    else
      memo_[*index] = stack_.back();
    return true;
  }

  bool get(std::optional<std::uint64_t> index) {
    return index && *index < memo_.size() && push(memo_[*index]);
  }

  std::span<const pickle_global> globals_;
  pickle out_;
  std::uint64_t at_ = 0;
  std::vector<pickle_value> stack_;
  std::vector<std::size_t> marks_;
  std::vector<pickle_value> memo_;
  std::size_t items_ = 0; // the items of lists and dictionaries
  bool stopped_ = false;
  bool known_ = false; // the opcode that failed
  status why_;
};

result<pickle> pickle::read(std::string_view bytes, std::span<const pickle_global> globals) {
  return pickle_machine{bytes, globals}.run();
}

std::string_view pickle::text(pickle_value value) const {
  MILLRACE_ASSERT(value.kind == pickle_kind::text);
  return bytes_.substr(value.at, value.count);
}

std::span<const pickle_value> pickle::tuple(pickle_value value) const {
  MILLRACE_ASSERT(value.kind == pickle_kind::tuple || value.kind == pickle_kind::persistent);
  return std::span{values_}.subspan(value.at, value.count);
}

const std::vector<pickle_value>& pickle::list(pickle_value value) const {
  MILLRACE_ASSERT(value.kind == pickle_kind::list);
  return lists_[value.at];
}

const std::vector<pickle::entry>& pickle::dictionary(pickle_value value) const {
  MILLRACE_ASSERT(value.kind == pickle_kind::dictionary);
  return dictionaries_[value.at];
}

std::pair<std::uint64_t, pickle_value> pickle::call(pickle_value value) const {
  MILLRACE_ASSERT(value.kind == pickle_kind::call);
  return {values_[value.at].at, values_[value.at + 1]};
}

} // namespace millrace::storage::archive
