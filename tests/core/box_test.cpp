// Tests boxes of tensors: their runs of bytes, and how they are cut.
#include <millrace/core/box.hpp>
#include <millrace/tests/support/dice.hpp>

#include <boost/test/unit_test.hpp>

#include <limits>
#include <set>

using namespace millrace;

namespace {

constexpr auto huge = std::numeric_limits<std::uint64_t>::max();

// The bytes of a box, element by element.
std::vector<std::uint64_t> bytes_of(const tensor_desc& tensor, const tensor_box& box) {
  std::uint64_t count = 1, bytes = bits_per_element(tensor.type) / 8;
  for (auto extent : box.extents)
    count *= extent;
  std::vector<std::uint64_t> out;
  for (std::uint64_t n = 0; n < count; ++n) {
    std::uint64_t at = 0, stride = 1, rest = n;
    for (auto i = tensor.shape.size(); i-- > 0; stride *= tensor.shape[i]) {
      at += (box.offsets[i] + rest % box.extents[i]) * stride;
      rest /= box.extents[i];
    }
    for (std::uint64_t b = 0; b < bytes; ++b)
      out.push_back(at * bytes + b);
  }
  return out;
}

std::vector<std::uint64_t> bytes_of(const box_runs& runs) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t run = 0; run < runs.count(); ++run)
    for (std::uint64_t b = 0; b < runs.run_bytes(); ++b)
      out.push_back(runs.first_byte() + runs.offset(run) + b);
  return out;
}

tensor_box box_in(testing::dice& dice, const std::vector<std::uint64_t>& shape) {
  tensor_box box;
  for (auto size : shape) {
    box.offsets.push_back(dice.below(size));
    box.extents.push_back(dice.between(1, size - box.offsets.back()));
  }
  return box;
}

tensor_desc tensor_of(testing::dice& dice, std::uint64_t rank) {
  tensor_desc tensor{"t", dice.percent(50) ? dtype::u8 : dtype::f32, {}};
  for (std::uint64_t i = 0; i < rank; ++i)
    tensor.shape.push_back(dice.between(1, 6));
  return tensor;
}

} // namespace

BOOST_AUTO_TEST_SUITE(box_tests)

BOOST_AUTO_TEST_CASE(the_runs_of_a_box_are_its_elements_in_order_and_never_touch) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    testing::dice dice{seed};
    auto tensor = tensor_of(dice, seed % 5);
    auto box = box_in(dice, tensor.shape);
    auto runs = runs_of(tensor, box);
    BOOST_TEST_REQUIRE(runs.has_value());
    BOOST_TEST((bytes_of(*runs) == bytes_of(tensor, box)), "seed " << seed);
    for (std::uint64_t run = 1; run < runs->count(); ++run)
      BOOST_TEST(runs->offset(run) > runs->offset(run - 1) + runs->run_bytes());
    for (std::uint64_t at = 0; at < runs->span_bytes() + 2; ++at) {
      std::uint64_t expected = 0;
      while (expected < runs->count() && runs->offset(expected) + runs->run_bytes() <= at)
        ++expected;
      BOOST_REQUIRE(runs->first_ending_after(at) == expected);
    }
    auto [groups, inside] = runs->grouped(dice.between(1, 40));
    std::vector<std::uint64_t> again;
    for (std::uint64_t g = 0; g < groups.count(); ++g)
      for (auto byte : bytes_of(inside))
        again.push_back(groups.first_byte() + groups.offset(g) + byte);
    BOOST_TEST((again == bytes_of(*runs)), "seed " << seed);
    BOOST_TEST(groups.run_bytes() == inside.span_bytes());
  }
}

BOOST_AUTO_TEST_CASE(boxes_outside_of_the_tensor_are_refused_whatever_overflows) {
  tensor_desc tensor{"w", dtype::f32, {4, 6}};
  for (auto& box : std::vector<tensor_box>{
         {{5, 0}, {0, 6}},
         {{4, 0}, {1, 6}},
         {{1, 0}, {4, 6}},
         {{huge, 0}, {1, 6}},
         {{1, 0}, {huge, 6}},
         {{huge, huge}, {huge, huge}},
         {{0, 6}, {4, 1}},
         {{0}, {4}},
         {{}, {}},
         {{0, 0, 0}, {4, 6, 1}}}) {
    auto runs = runs_of(tensor, box);
    BOOST_TEST_REQUIRE(!runs.has_value());
    BOOST_TEST((runs.error().code() == errc::invalid_argument));
    BOOST_TEST(runs.error().detail().find("tensor w") != std::string::npos);
  }
  BOOST_TEST(runs_of(tensor, {{4, 6}, {0, 0}})->size_bytes() == 0u);
}

BOOST_AUTO_TEST_CASE(elements_smaller_than_a_byte_are_cut_at_whole_bytes_only) {
  tensor_desc tensor{"q", dtype::f4, {4, 6}};
  auto right = runs_of(tensor, {{1, 2}, {2, 4}});
  BOOST_TEST_REQUIRE(right.has_value());
  BOOST_TEST(right->first_byte() == 4u);
  BOOST_TEST(right->run_bytes() == 2u);
  BOOST_TEST(right->offset(1) == 3u);
  BOOST_TEST(!runs_of(tensor, {{1, 1}, {2, 4}}).has_value());
  BOOST_TEST(!runs_of(tensor, {{1, 2}, {2, 3}}).has_value());
}

BOOST_AUTO_TEST_CASE(what_is_cut_out_and_what_is_left_are_the_whole_box_once) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    testing::dice dice{seed};
    auto tensor = tensor_of(dice, seed % 5);
    auto a = box_in(dice, tensor.shape), b = box_in(dice, tensor.shape);
    auto both = intersection(a, b);
    std::vector<std::uint64_t> bytes;
    auto add = [&](const tensor_box& box) {
      auto more = bytes_of(tensor, box);
      bytes.insert(bytes.end(), more.begin(), more.end());
    };
    if (both) {
      add(*both);
      for (auto& left : without(a, *both)) {
        BOOST_TEST(!intersection(left, b).has_value());
        add(left);
      }
    } else {
      add(a);
    }
    auto expected = bytes_of(tensor, a);
    BOOST_TEST(bytes.size() == expected.size(), "seed " << seed);
    BOOST_TEST(
      (std::set(bytes.begin(), bytes.end()) == std::set(expected.begin(), expected.end())));
  }
}

BOOST_AUTO_TEST_SUITE_END()
