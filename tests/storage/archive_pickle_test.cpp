// Tests zip files and pickles as NPZ and torch files have them: some that other programs write, and
// some that no program would write.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/archive/state_dict.hpp>
#include <millrace/tests/support/crafted_zip.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/tensors_in_memory.hpp>

#include <boost/test/unit_test.hpp>

#include <cstring>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::archive;

BOOST_AUTO_TEST_SUITE(zip_files)

namespace {

status outcome_of(archive_format format, const std::vector<crafted_entry>& entries) {
  scratch_directory dir;
  write_crafted_zip(dir.path() + "/file", entries);
  auto opened = open_archive(dir.path() + "/file", format);
  return opened ? status{} : opened.error();
}

} // namespace

BOOST_AUTO_TEST_CASE(entries_without_bytes_are_refused) {
  for (auto name : {"a.npy", "__metadata__.json"})
    BOOST_TEST((outcome_of(archive_format::npz, {{name, ""}}).code() == errc::corrupt_data), name);
  auto pickled = *archive::write_state_dict(layout{{{"x", dtype::f64, {3}}}});
  auto storage = std::string(24, 'x');
  for (auto& entries : std::vector<std::vector<crafted_entry>>{
         {{"a/data.pkl", ""}, {"a/data/0", storage}},
         {{"a/data.pkl", pickled}, {"a/data/0", ""}},
         {{"a/data.pkl", pickled}, {"a/data/0", storage}, {"a/byteorder", ""}}})
    BOOST_TEST((outcome_of(archive_format::torch, entries).code() == errc::corrupt_data));
}

BOOST_AUTO_TEST_CASE(two_entries_of_one_name_are_refused) {
  auto array = write_npy_header({"a", dtype::u8, {1}}) + "x";
  auto pickled = *archive::write_state_dict(layout{{{"x", dtype::u8, {1}}}});
  auto refused = [](archive_format format, const std::vector<crafted_entry>& entries) {
    auto bad = outcome_of(format, entries);
    BOOST_TEST((bad.code() == errc::corrupt_data));
    BOOST_TEST(bad.detail().find("two entries are called") != std::string::npos, bad.detail());
  };
  BOOST_TEST(outcome_of(archive_format::npz, {{"a.npy", array}}).ok());
  refused(archive_format::npz, {{"a.npy", array}, {"a.npy", array}});
  refused(archive_format::npz, {{"__metadata__.json", "{}"}, {"__metadata__.json", "{}"}});
  BOOST_TEST(outcome_of(archive_format::torch, {{"a/data.pkl", pickled}, {"a/data/0", "x"}}).ok());
  refused(archive_format::torch, {{"a/data.pkl", pickled}, {"a/data/0", "x"}, {"a/data/0", "y"}});
}

// They are as in numpy.load: a name is no path, bytes after an array are left out, and a truth
// value keeps its byte.
BOOST_AUTO_TEST_CASE(what_numpy_reads_though_it_is_odd_is_read_as_numpy_does) {
  scratch_directory dir;
  auto path = dir.path() + "/a.npz";
  auto array = write_npy_header({"b", dtype::boolean, {3}});
  write_crafted_zip(path, {{"../../b.npy", array + std::string{"\0\1\2and more", 11}}});
  auto source = open_archive(path);
  BOOST_TEST_REQUIRE(source.has_value(), why(source));
  BOOST_TEST((*source)->tensors().tensors.at(0).name == "../../b");
  auto bytes = read_tensor(**source, 0);
  BOOST_TEST_REQUIRE(bytes.has_value(), why(bytes));
  BOOST_TEST((*bytes == std::vector{std::byte{0}, std::byte{1}, std::byte{2}}));
}

BOOST_AUTO_TEST_CASE(an_array_whose_extents_overflow_beside_one_of_0_is_refused) {
  auto header = write_npy_header({"a", dtype::f32, {1ull << 63, 2, 0}});
  auto bad = outcome_of(archive_format::npz, {{"a.npy", header}});
  BOOST_TEST(bad.detail().find("overflows") != std::string::npos, bad.to_string());
}

BOOST_AUTO_TEST_CASE(an_entry_that_claims_more_bytes_than_the_file_is_refused) {
  auto bad = outcome_of(archive_format::torch, {{"a/data.pkl", "x", 200ull << 20}});
  BOOST_TEST((bad.code() == errc::corrupt_data));
  BOOST_TEST(bad.detail().find("promises 209715200 bytes") != std::string::npos, bad.detail());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(pickles)

namespace {

errc outcome_of(std::string_view pickled) {
  auto state = archive::read_state_dict(pickled);
  return state ? errc::ok : state.error().code();
}

} // namespace

BOOST_AUTO_TEST_CASE(calls_are_refused_by_name) {
  auto state = archive::read_state_dict("\x80\x02"
                                        "cos\nsystem\nX\x02\0\0\0ls\x85R.");
  BOOST_TEST((state.error().code() == errc::unsupported));
  BOOST_TEST(state.error().detail().find("os.system") != std::string::npos);
  auto opcode = archive::read_state_dict("\x80\x04\x8f.");
  BOOST_TEST((opcode.error().code() == errc::unsupported));
  BOOST_TEST(opcode.error().detail().find("EMPTY_SET") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_is_neither_a_tensor_nor_plain_is_named_with_a_remedy) {
  using namespace std::string_view_literals;
  auto refused = [](std::string_view pickled) {
    auto state = archive::read_state_dict(pickled);
    BOOST_TEST_REQUIRE(!state.has_value());
    BOOST_TEST((state.error().code() == errc::unsupported));
    return state.error().detail();
  };
  // {"args": argparse.Namespace()}, {"seen": set()}, {"type": torch.float32}, {"n": 2 ** 64}.
  auto call = refused("\x80\x02}X\x04\0\0\0argscargparse\nNamespace\n)Rs."sv);
  BOOST_TEST(call.find("argparse.Namespace (for args)") != std::string::npos, call);
  BOOST_TEST(call.find("state_dict()") != std::string::npos, call);
  auto set = refused("\x80\x04}X\x04\0\0\0seen\x8fs."sv);
  BOOST_TEST(set.find("EMPTY_SET (0x8f) (for seen)") != std::string::npos, set);
  auto type = refused("\x80\x02}X\x04\0\0\0typectorch\nfloat32\ns."sv);
  BOOST_TEST(type.starts_with("type: it is neither a tensor"), type);
  auto wide = refused("\x80\x02}X\x01\0\0\0n\x8a\x09\0\0\0\0\0\0\0\0\x01s."sv);
  BOOST_TEST(wide.find("more than 64 bits (for n)") != std::string::npos, wide);
  // Values that the metadata could not keep.
  refused("\x80\x02}X\0\0\0\0K\x01s."sv);
  refused("\x80\x02}X\x0d\0\0\0millrace.stepK\x01s."sv);
  refused("\x80\x02}(K\x01K\x01X\x01\0\0\0001K\x02u."sv);
  refused("\x80\x02}X\x01\0\0\0aX\x01\0\0\0\xffs."sv);
}

BOOST_AUTO_TEST_CASE(values_without_tensors_are_kept_as_json) {
  using namespace std::string_view_literals;
  // {"l": [1, -0.5, True, None, ("a", {}), inf, nan], "epoch": 3}.
  auto state = archive::read_state_dict(
    "\x80\x02}(X\x01\0\0\0l](K\x01G\xbf\xe0\0\0\0\0\0\0\x88NX\x01\0\0\0a}\x86"
    "G\x7f\xf0\0\0\0\0\0\0G\x7f\xf8\0\0\0\0\0\0eX\x05\0\0\0epochK\x03u."sv);
  BOOST_TEST_REQUIRE(state.has_value(), why(state));
  BOOST_TEST(state->tensors.empty());
  text_pairs expected = {{"l", R"([1,-0.5,true,null,["a",{}],Infinity,NaN])"}, {"epoch", "3"}};
  BOOST_TEST((state->values == expected));
}

BOOST_AUTO_TEST_CASE(lists_with_tensors_are_walked_and_others_are_kept_whole) {
  using namespace std::string_view_literals;
  // {"param_groups": [{"lr": TENSOR, "params": [0, 1]}, {"params": []}]}.
  auto inner = *archive::write_state_dict(layout{{{"lr", dtype::f32, {}}}});
  auto groups = std::string{"\x80\x02}X\x0c\0\0\0param_groups]("sv} +
    inner.substr(2, inner.size() - 4) +
    std::string{"X\x06\0\0\0params](K\0K\1eu}X\x06\0\0\0params]ses."sv};
  auto state = archive::read_state_dict(groups);
  BOOST_TEST_REQUIRE(state.has_value(), why(state));
  BOOST_TEST_REQUIRE(state->tensors.size() == 1u);
  BOOST_TEST(state->tensors[0].tensor.name == "param_groups.0.lr");
  text_pairs expected = {
    {"param_groups.0.params", "[0,1]"}, {"param_groups.1", R"({"params":[]})"}};
  BOOST_TEST((state->values == expected));
}

BOOST_AUTO_TEST_CASE(numbers_are_names_too) {
  // An optimizer's state: {0: {"exp_avg": tensor}}.
  layout tensors{{{"exp_avg", dtype::f32, {4}}}};
  auto inner = *archive::write_state_dict(tensors);
  auto nested = "\x80\x02}K\x07" + inner.substr(2, inner.size() - 3) + "s.";
  auto state = archive::read_state_dict(nested);
  BOOST_TEST_REQUIRE(state.has_value(), why(state));
  BOOST_TEST_REQUIRE(state->tensors.size() == 1u);
  BOOST_TEST(state->tensors[0].tensor.name == "7.exp_avg");
}

namespace {

using namespace std::string_view_literals;

// The opcodes of {"conj": True} and of {"neg": True}, without those of the dictionary itself.
constexpr auto conj = "X\x04\0\0\0conj\x88s"sv;
constexpr auto neg = "X\x03\0\0\0neg\x88s"sv;

// One tensor, with a last argument after those of `write_state_dict`.
std::string with_argument(dtype type, std::string_view opcodes) {
  auto pickled = *archive::write_state_dict(layout{{{"x", type, {2}}}});
  auto end = pickled.rfind("tRu.");
  BOOST_TEST_REQUIRE(end != std::string::npos);
  return pickled.insert(end, opcodes);
}

template <class Number>
result<std::vector<Number>> read_marked(
  dtype type, std::string_view marks, const std::vector<Number>& stored) {
  scratch_directory dir;
  auto path = dir.path() + "/a.pt";
  std::string bytes{reinterpret_cast<const char*>(stored.data()), stored.size() * sizeof(Number)};
  write_crafted_zip(
    path, {{"a/data.pkl", with_argument(type, "}" + std::string{marks})}, {"a/data/0", bytes}});
  auto source = open_archive(path);
  if (!source)
    return fail(source.error());
  auto read = read_tensor(**source, 0);
  if (!read)
    return fail(read.error());
  std::vector<Number> numbers(stored.size());
  BOOST_TEST_REQUIRE(read->size() == bytes.size());
  std::memcpy(numbers.data(), read->data(), read->size());
  return numbers;
}

} // namespace

BOOST_AUTO_TEST_CASE(marks_of_conjugated_and_negated_tensors_are_applied) {
  using floats = std::vector<float>;
  auto both = std::string{conj} + std::string{neg};
  auto complex = [&](std::string_view marks) {
    return *read_marked<float>(dtype::c64, marks, {1, 2, 3, -4});
  };
  BOOST_TEST((complex("") == floats{1, 2, 3, -4}));
  BOOST_TEST((complex(conj) == floats{1, -2, 3, 4}));
  BOOST_TEST((complex(neg) == floats{-1, -2, -3, 4}));
  BOOST_TEST((complex(both) == floats{-1, 2, -3, -4}));
  BOOST_TEST((*read_marked<float>(dtype::f32, neg, {1, -2}) == floats{-1, 2}));
  BOOST_TEST((*read_marked<double>(dtype::f64, neg, {1, -2}) == std::vector<double>{-1, 2}));
  using halves = std::vector<std::uint16_t>;
  BOOST_TEST(
    (*read_marked<std::uint16_t>(dtype::bf16, neg, {0x3f80, 0xc000}) == halves{0xbf80, 0x4000}));
  // PyTorch does not mark real tensors like this.
  auto real = read_marked<float>(dtype::f32, conj, {1, 2});
  BOOST_TEST((real.error().code() == errc::unsupported));
  BOOST_TEST(real.error().detail().find("resolve_conj()") != std::string::npos, why(real));
  auto whole = read_marked<std::int32_t>(dtype::i32, neg, {1, 2});
  BOOST_TEST((whole.error().code() == errc::unsupported), why(whole));
}

BOOST_AUTO_TEST_CASE(what_a_tensor_is_made_with_and_is_not_known_is_refused) {
  auto refused = [](std::string_view opcodes) {
    auto state = archive::read_state_dict(with_argument(dtype::f32, opcodes));
    BOOST_TEST_REQUIRE(!state.has_value());
    return state.error();
  };
  auto strange = refused("}X\x04\0\0\0skew\x88s"sv);
  BOOST_TEST((strange.code() == errc::unsupported));
  BOOST_TEST(strange.detail().find("skew") != std::string::npos, strange.detail());
  BOOST_TEST((refused("}X\x04\0\0\0conj\x89s"sv).code() == errc::unsupported));
  BOOST_TEST((refused("}K\x01\x88s"sv).code() == errc::unsupported));
  for (auto opcodes : {"N"sv, ")"sv, "K\x01"sv, "}}"sv, "}N"sv})
    BOOST_TEST((refused(opcodes).code() == errc::corrupt_data));
  // Hooks, and a parameter with one argument more.
  auto pickled = *archive::write_state_dict(layout{{{"x", dtype::f32, {2}}}});
  auto hooked = pickled;
  hooked.insert(hooked.rfind("tRu."), "X\x01\0\0\0aNs"sv);
  BOOST_TEST((outcome_of(hooked) == errc::corrupt_data));
  auto at = pickled.find("X\x01\0\0\0x"sv) + 6;
  auto parameter = [&](std::string_view last) {
    auto tensor = pickled.substr(at, pickled.size() - at - 2);
    return pickled.substr(0, at) + "ctorch._utils\n_rebuild_parameter\n(" + tensor + "\x88" +
      std::string{last} + "tRu.";
  };
  BOOST_TEST((outcome_of(parameter("}")) == errc::ok));
  BOOST_TEST((outcome_of(parameter("}N")) == errc::corrupt_data));
}

BOOST_AUTO_TEST_CASE(attributes_of_a_dictionary_are_refused_but_the_versions_of_modules) {
  // OrderedDict() with the attributes {NAME: {}}.
  auto with = [](std::string_view name) {
    return "\x80\x02"
           "ccollections\nOrderedDict\n)R}X" +
      std::string{static_cast<char>(name.size())} + std::string(3, '\0') + std::string{name} +
      "}sb.";
  };
  BOOST_TEST((outcome_of(with("_metadata")) == errc::ok));
  auto state = archive::read_state_dict(with("scale"));
  BOOST_TEST((state.error().code() == errc::unsupported));
  BOOST_TEST(state.error().detail().find("scale") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(strides_beyond_the_storage_are_refused) {
  scratch_directory dir;
  auto path = dir.path() + "/a.pt";
  auto pickled = *archive::write_state_dict(layout{{{"x", dtype::f64, {3}}}});
  // Steps of 2^60 elements: the last one's place, in bytes, is more than 64 bits hold.
  auto at = pickled.find("(K\x01t");
  BOOST_TEST_REQUIRE(at != std::string::npos);
  pickled.replace(at, 4, "(\x8a\x08" + std::string(7, '\0') + "\x10t");
  write_crafted_zip(path, {{"a/data.pkl", pickled}, {"a/data/0", std::string(24, 'x')}});
  auto opened = open_archive(path, archive_format::torch);
  BOOST_TEST((opened.error().code() == errc::corrupt_data), why(opened));
  BOOST_TEST(opened.error().detail().find("does not lie in the") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(extents_that_overflow_are_refused_beside_one_of_0) {
  scratch_directory dir;
  auto path = dir.path() + "/a.pt";
  auto pickled = *archive::write_state_dict(layout{{{"x", dtype::f64, {0}}}});
  auto replace = [&](std::string_view what, const std::string& with) {
    auto at = pickled.find(what);
    BOOST_TEST_REQUIRE(at != std::string::npos);
    pickled.replace(at, what.size(), with);
  };
  // [2^62, 2^62, 0]
  auto large = "\x8a\x08" + std::string(7, '\0') + "\x40";
  replace("(K\x00t"sv, "(" + large + large + std::string("K\x00t", 3));
  replace("(K\x01t"sv, "(K\x01K\x01K\x01t");
  write_crafted_zip(path, {{"a/data.pkl", pickled}, {"a/data/0", ""}});
  auto opened = open_archive(path, archive_format::torch);
  BOOST_TEST(opened.error().detail().find("overflows") != std::string::npos, why(opened));
}

BOOST_AUTO_TEST_CASE(circles_and_growth_end) {
  using namespace std::string_view_literals;
  // A dictionary that contains itself.
  BOOST_TEST((outcome_of("\x80\x02}q\0X\x01\0\0\0ah\0s."sv) == errc::unsupported));
  // Each contains the one before twice: 2^40 paths.
  std::string grows = "\x80\x02}q";
  grows += '\0';
  for (int i = 0; i < 30; ++i) {
    auto get = std::string{"h"} + static_cast<char>(i);
    grows += "}q";
    grows += static_cast<char>(i + 1);
    grows += "(X" + std::string{"\x01\0\0\0", 4} + "a" + get + "X" + std::string{"\x01\0\0\0", 4} +
      "b" + get + "u";
  }
  grows += ".";
  // Only the last one may stay on the stack: the others are in the way.
  BOOST_TEST((outcome_of(grows) == errc::corrupt_data));
  // Lists, each of which contains the one before twice.
  std::string lists = "\x80\x02}(";
  for (char i = 0; i < 30; ++i) {
    auto twice = std::string{'h', static_cast<char>(i - 1), 'h', static_cast<char>(i - 1)};
    lists += std::string{"X\x01\0\0\0"sv} + static_cast<char>('A' + i) + "](" +
      (i == 0 ? "" : twice) + "eq" + i;
  }
  BOOST_TEST((outcome_of(lists + "u.") == errc::corrupt_data));
  // Nested tuples without end.
  BOOST_TEST((outcome_of("\x80\x02)" + std::string(1000000, '\x85') + ".") == errc::unsupported));
}

BOOST_AUTO_TEST_CASE(every_cut_and_flip_of_a_pickle_does_no_harm) {
  layout tensors{{{"a.weight", dtype::f32, {4, 300}}, {"b", dtype::f8_e5m2, {70000, 70000}}}};
  auto whole = archive::write_state_dict(tensors);
  BOOST_TEST_REQUIRE(whole.has_value(), why(whole));
  auto read = archive::read_state_dict(*whole);
  BOOST_TEST_REQUIRE(read.has_value(), why(read));
  BOOST_TEST((read->tensors.at(1).tensor == tensors.tensors[1]));
  for (std::size_t length = 0; length < whole->size(); ++length)
    BOOST_TEST((outcome_of(whole->substr(0, length)) != errc::ok));
  for (std::size_t at = 0; at < whole->size(); ++at)
    for (int value = 0; value < 256; ++value) {
      auto damaged = *whole;
      damaged[at] = static_cast<char>(value);
      static_cast<void>(outcome_of(damaged));
    }
}

BOOST_AUTO_TEST_SUITE_END()
