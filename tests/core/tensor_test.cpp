// Tests dtypes, sizes and checks of tensors and layouts.
#include <millrace/core/tensor.hpp>

#include <boost/test/unit_test.hpp>

#include <array>

using namespace millrace;

BOOST_AUTO_TEST_SUITE(tensors)

BOOST_AUTO_TEST_CASE(every_dtype_reads_back_from_its_spelling) {
  for (std::uint8_t i = 0; i < dtype_count; ++i) {
    auto type = static_cast<dtype>(i);
    BOOST_TEST((parse_dtype(to_string(type)) == type));
  }
  BOOST_TEST((parse_dtype("bfloat16") == dtype::bf16));
  BOOST_TEST((parse_dtype("complex128") == dtype::c128));
  BOOST_TEST(!parse_dtype("float128"));
}

// They are stored and sent.
BOOST_AUTO_TEST_CASE(numbers_of_dtypes_stay) {
  constexpr std::array<std::string_view, dtype_count> names = {
    "BOOL",    "F4",      "F6_E2M3", "F6_E3M2", "U8",  "I8",   "F8_E5M2",
    "F8_E4M3", "F8_E8M0", "I16",     "U16",     "F16", "BF16", "I32",
    "U32",     "F32",     "C64",     "F64",     "I64", "U64",  "C128"};
  for (std::uint8_t i = 0; i < dtype_count; ++i)
    BOOST_TEST(to_string(static_cast<dtype>(i)) == names[i]);
}

BOOST_AUTO_TEST_CASE(sizes_follow_dtype_and_shape) {
  BOOST_TEST(size_bytes(tensor_desc{"a", dtype::f32, {3, 4}}).value() == 48u);
  BOOST_TEST(size_bytes(tensor_desc{"a", dtype::bf16, {}}).value() == 2u);
  BOOST_TEST(size_bytes(tensor_desc{"a", dtype::f64, {7, 0, 9}}).value() == 0u);
  BOOST_TEST(size_bytes(tensor_desc{"a", dtype::f4, {2, 3}}).value() == 3u);
  BOOST_TEST(size_bytes(tensor_desc{"a", dtype::c128, {2, 3}}).value() == 96u);
  BOOST_TEST(row_bytes(tensor_desc{"a", dtype::f32, {3, 4}}).value() == 16u);
  BOOST_TEST(row_bytes(tensor_desc{"a", dtype::i64, {}}).value() == 8u);
}

BOOST_AUTO_TEST_CASE(half_bytes_and_overflow_are_refused) {
  BOOST_TEST(!size_bytes(tensor_desc{"a", dtype::f4, {3}}));
  BOOST_TEST(!size_bytes(tensor_desc{"a", dtype::u8, {1ull << 40, 1ull << 40}}));
  // A zero makes the product zero; what overflows beside it is refused in any order.
  BOOST_TEST(size_bytes(tensor_desc{"a", dtype::u8, {1ull << 40, 0}}).value() == 0u);
  BOOST_TEST(!size_bytes(tensor_desc{"a", dtype::u8, {1ull << 63, 1ull << 63, 0}}));
  BOOST_TEST(!size_bytes(tensor_desc{"a", dtype::u8, {0, 1ull << 63, 1ull << 63}}));
}

BOOST_AUTO_TEST_CASE(names_must_be_bounded_utf8) {
  auto check = [](std::string name) {
    return validate(tensor_desc{std::move(name), dtype::u8, {}}).code();
  };
  BOOST_TEST((check("gewicht.größe.重み") == errc::ok));
  BOOST_TEST((check("") == errc::invalid_argument));
  BOOST_TEST((check(std::string(tensor_name_bytes_max + 1, 'a')) == errc::invalid_argument));
  BOOST_TEST((check("\xc0\xaf") == errc::invalid_argument));     // overlong
  BOOST_TEST((check("\xed\xa0\x80") == errc::invalid_argument)); // surrogate
  BOOST_TEST((check(std::string("a\0b", 3)) == errc::invalid_argument));
  BOOST_TEST((check("\xf4\x90\x80\x80") == errc::invalid_argument)); // above U+10FFFF
}

BOOST_AUTO_TEST_CASE(layouts_refuse_doubles_and_unknown_dtypes) {
  layout doubled{{{"a", dtype::u8, {1}}, {"a", dtype::u8, {2}}}};
  BOOST_TEST((validate(doubled).code() == errc::invalid_argument));
  layout strange{{{"a", static_cast<dtype>(99), {1}}}};
  BOOST_TEST((validate(strange).code() == errc::invalid_argument));
  layout huge{{{"a", dtype::u8, {1ull << 57}}, {"b", dtype::u8, {1ull << 57}}}};
  BOOST_TEST(validate(huge).ok());
  BOOST_TEST(size_bytes(huge) == 1ull << 58);
}

BOOST_AUTO_TEST_SUITE_END()
