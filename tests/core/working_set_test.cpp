// Tests where the fields of a working set lie, and that a description that lies is refused.
#include <millrace/core/codec.hpp>
#include <millrace/core/working_set.hpp>

#include <boost/test/unit_test.hpp>

#include <functional>
#include <limits>
#include <vector>

using namespace millrace;

namespace {

set_info digits() {
  set_info out;
  out.name = "digits";
  out.samples = 1000;
  out.region_bytes = 1 << 20;
  out.fields = {{{"image", dtype::u8, {28, 28}}}, {{"label", dtype::i64, {}}}};
  return out;
}

// With texts beside each image, 5000 bytes of all samples, and pairs of numbers.
set_info varying() {
  auto out = digits();
  out.fields.push_back({.sample = {"text", dtype::u8, {0}}, .varies = true});
  out.fields.push_back({.sample = {"boxes", dtype::f32, {0, 4}}, .varies = true});
  out.fields[2].data_bytes = 5000;
  out.fields[2].space_bytes = 64'000;
  return out;
}

set_info placed(set_info set) {
  auto bad = place_fields(set);
  BOOST_TEST_REQUIRE(bad.ok(), bad.to_string());
  return set;
}

} // namespace

BOOST_AUTO_TEST_SUITE(working_sets)

BOOST_AUTO_TEST_CASE(fields_follow_each_other_on_pages) {
  auto set = placed(digits());
  BOOST_TEST(set.fields[0].base == 0u);
  BOOST_TEST(set.fields[0].bytes == 784u);
  BOOST_TEST(set.fields[1].base == 784'000u / 4096 * 4096 + 4096);
  BOOST_TEST(set.fields[1].bytes == 8u);
  BOOST_TEST(set.fields[0].table % 4096 == 0u);
  BOOST_TEST(set.fields[0].table >= set.fields[1].base + 8000);
  BOOST_TEST(set.size_bytes == set.fields[1].table + 8000);
  BOOST_TEST(region_count(set) == 1u);
  BOOST_TEST(validate(set).ok());
  set.samples = 0;
  BOOST_TEST(placed(set).size_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(the_identity_is_that_of_what_a_set_contains) {
  auto identity = [](const std::function<void(set_info&)>& change) {
    auto set = digits();
    change(set);
    return placed(set).identity;
  };
  auto one = identity([](auto&) {});
  BOOST_TEST(one == identity([](auto& set) {
               set.name = "others";
               set.region_bytes = 1 << 24;
               set.source = 7;
               set.id = random_id<set_id>();
             }));
  BOOST_TEST(one != identity([](auto& set) { set.samples = 1001; }));
  BOOST_TEST(one != identity([](auto& set) { set.fields[0].sample.name = "images"; }));
  BOOST_TEST(one != identity([](auto& set) { set.fields[0].sample.type = dtype::i8; }));
  BOOST_TEST(one != identity([](auto& set) { set.fields[0].sample.shape = {784}; }));
  BOOST_TEST(one != identity([](auto& set) { std::swap(set.fields[0], set.fields[1]); }));
}

BOOST_AUTO_TEST_CASE(a_description_that_lies_is_refused) {
  const std::function<void(set_info&)> lies[] = {
    [](auto& s) { s.size_bytes -= 1; },
    [](auto& s) { s.size_bytes += 4096; },
    [](auto& s) { s.fields[1].base = 0; },
    [](auto& s) { s.fields[1].base += 8; },
    [](auto& s) { s.fields[0].bytes = 1 << 20; },
    [](auto& s) { s.fields[0].table = s.size_bytes; },
    [](auto& s) { s.samples += 1; },
    [](auto& s) { s.samples = std::numeric_limits<std::uint64_t>::max(); },
    [](auto& s) { s.samples = std::uint64_t{1} << 61; },
    [](auto& s) {
      s.fields[0].sample.shape = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
    },
    [](auto& s) {
      s.fields[0].sample.shape = {0, 28};
    },
    [](auto& s) { s.fields[1].sample.name = "image"; },
    [](auto& s) { s.fields[1].sample.name = ""; },
    [](auto& s) { s.fields.clear(); },
    [](auto& s) { s.fields.resize(set_fields_max + 1, s.fields[0]); },
    [](auto& s) { s.region_bytes = 0; },
    [](auto& s) { s.region_bytes = 3 << 20; },
    [](auto& s) { s.region_bytes = 1 << 19; },
    [](auto& s) { s.region_bytes = std::uint64_t{1} << 35; },
    [](auto& s) { s.identity ^= 1; },
    [](auto& s) { s.name = ""; },
    [](auto& s) { s.left_out.assign(2, std::string(left_out_bytes_max / 2, 'x')); },
  };
  for (std::size_t i = 0; i < std::size(lies); ++i) {
    auto set = placed(digits());
    lies[i](set);
    BOOST_TEST((validate(set).code() == errc::invalid_argument), "lie " << i);
  }
}

BOOST_AUTO_TEST_CASE(fields_that_vary_have_their_space_and_larger_tables) {
  auto set = placed(varying());
  auto& text = set.fields[2];
  BOOST_TEST(text.bytes == 0u);
  BOOST_TEST(text.base % 4096 == 0u);
  BOOST_TEST(set.fields[3].base >= text.base + 64'000);
  BOOST_TEST(set.fields[0].data_bytes == 784'000u);
  BOOST_TEST(set.fields[3].table >= text.table + 24'000);
  BOOST_TEST(set.size_bytes == set.fields[3].table + 24'000);
  BOOST_TEST(validate(set).ok());
  // The order does not depend on the lengths.
  auto other = varying();
  other.fields[2].data_bytes = 5001;
  BOOST_TEST(placed(other).identity == set.identity);
  auto fixed = varying();
  fixed.fields.pop_back();
  BOOST_TEST(placed(fixed).identity != set.identity);
}

BOOST_AUTO_TEST_CASE(a_varying_field_that_lies_is_refused) {
  const std::function<void(set_info&)> lies[] = {
    [](auto& s) { s.fields[2].varies = false; },
    [](auto& s) { s.fields[2].bytes = 5; },
    [](auto& s) { s.fields[2].sample.shape = {}; },
    [](auto& s) { s.fields[2].sample.shape = {1}; },
    [](auto& s) {
      s.fields[3].sample.shape = {0, 0};
    },
    [](auto& s) { s.fields[2].data_bytes = 64'001; },
    [](auto& s) { s.fields[2].space_bytes += 1; },
    [](auto& s) { s.fields[2].space_bytes = 128'000; },
    [](auto& s) { s.fields[2].space_bytes = std::uint64_t{1} << 63; },
    [](auto& s) { s.fields[2].data_bytes = s.fields[2].space_bytes = std::uint64_t{1} << 63; },
    [](auto& s) { s.fields[3].data_bytes = 15; },
    [](auto& s) { s.samples = 0; },
    [](auto& s) { s.fields[0].data_bytes -= 1; },
    [](auto& s) { s.fields[0].space_bytes += 64; },
  };
  for (std::size_t i = 0; i < std::size(lies); ++i) {
    auto set = placed(varying());
    lies[i](set);
    BOOST_TEST((validate(set).code() == errc::invalid_argument), "lie " << i);
  }
}

BOOST_AUTO_TEST_CASE(an_entry_that_lies_is_damage) {
  auto set = placed(varying());
  auto& text = set.fields[2];
  auto code = [&](const sample_entry& entry) { return validate(entry, set, 2, 7).code(); };
  BOOST_TEST((code({text.base, 5000, 0}) == errc::ok));
  BOOST_TEST((code({text.base + 64'000, 0, 0}) == errc::ok));
  BOOST_TEST((code({text.base - 64, 64, 0}) == errc::corrupt_data));
  BOOST_TEST((code({text.base, 5001, 0}) == errc::corrupt_data));
  BOOST_TEST((code({text.base + 63'999, 2, 0}) == errc::corrupt_data));
  BOOST_TEST((code({text.base + 64'064, 0, 0}) == errc::corrupt_data));
  BOOST_TEST((code({text.base, ~0ull, 0}) == errc::corrupt_data));
  BOOST_TEST((code({~0ull, 1, 0}) == errc::corrupt_data));
  auto bad = validate({text.base, 5001, 0}, set, 2, 7);
  BOOST_TEST(bad.detail().find("text") != std::string::npos, bad.detail());
  BOOST_TEST(bad.detail().find("sample 7") != std::string::npos, bad.detail());
}

BOOST_AUTO_TEST_CASE(ranges_are_cut_at_the_borders_of_regions) {
  std::vector<set_piece> pieces;
  auto keep = [&](const set_piece& p) { pieces.push_back(p); };
  for_each_piece(1 << 20, (1 << 20) - 10, (1 << 20) + 30, keep);
  const std::vector<set_piece> expected{{0, (1 << 20) - 10, 10}, {1, 0, 1 << 20}, {2, 0, 20}};
  BOOST_TEST((pieces == expected));
  pieces.clear();
  for_each_piece(1 << 20, 1 << 20, 0, keep);
  BOOST_TEST(pieces.empty());
}

BOOST_AUTO_TEST_CASE(every_sample_is_in_one_part) {
  for (std::uint64_t samples : {0, 1, 2, 6, 7, 8, 100, 1003})
    for (std::size_t parts = 1; parts <= 8; ++parts) {
      BOOST_TEST(first_sample(samples, parts, 0) == 0u);
      BOOST_TEST(first_sample(samples, parts, parts) == samples);
      for (std::size_t i = 0; i < parts; ++i) {
        auto first = first_sample(samples, parts, i), end = first_sample(samples, parts, i + 1);
        BOOST_TEST_REQUIRE((end >= first && end - first <= samples / parts + 1));
        for (auto sample = first; sample < end; ++sample)
          BOOST_TEST_REQUIRE(part_of(samples, parts, sample) == i);
      }
    }
}

namespace {

// Part `index` of the set above on three nodes.
set_info part_of_three(std::uint32_t index) {
  auto whole = placed(varying());
  auto out = whole;
  out.division.whole = random_id<set_id>();
  out.division.index = index;
  out.division.nodes = {"n0", "n1", "n2"};
  out.division.samples = whole.samples;
  for (auto& field : whole.fields)
    out.division.fields.push_back({field.data_bytes, field.space_bytes});
  out.samples = first_sample(1000, 3, index + 1) - first_sample(1000, 3, index);
  out.fields[2].data_bytes = 1500;
  out.fields[2].space_bytes = 21'312;
  return placed(out);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_part_describes_the_whole) {
  auto whole = placed(varying());
  BOOST_TEST((whole_of(whole).value() == whole));
  for (std::uint32_t index : {0, 1, 2}) {
    auto part = part_of_three(index);
    BOOST_TEST(validate(part).ok());
    BOOST_TEST(part.identity == whole.identity);
    auto found = whole_of(part).value();
    BOOST_TEST((found.id == part.division.whole));
    BOOST_TEST(found.samples == 1000u);
    BOOST_TEST((found.fields == whole.fields));
    BOOST_TEST(found.identity == whole.identity);
  }
}

BOOST_AUTO_TEST_CASE(a_division_that_lies_is_refused) {
  const std::function<void(set_info&)> lies[] = {
    [](auto& s) { s.division.index = 3; },
    [](auto& s) { s.division.index = 0; }, // which has a sample more
    [](auto& s) { s.division.whole = {}; },
    [](auto& s) { s.division.samples = std::numeric_limits<std::uint64_t>::max(); },
    [](auto& s) { s.division.samples += 10; },
    [](auto& s) { s.division.nodes.pop_back(); },
    [](auto& s) { s.division.nodes = {"n0"}; },
    [](auto& s) { s.division.nodes = {}; },
    [](auto& s) { s.division.nodes[1] = "n0"; },
    [](auto& s) { s.division.nodes[1] = ""; },
    [](auto& s) { s.division.nodes[1] = std::string(257, 'x'); },
    [](auto& s) { s.division.nodes.resize(set_parts_max + 1, "n"); },
    [](auto& s) { s.division.fields.pop_back(); },
    [](auto& s) { s.division.fields[0].data_bytes += 1; },
    [](auto& s) { s.division.fields[2].data_bytes = 1499; },
    [](auto& s) { s.division.fields[2].space_bytes = 64; },
    [](auto& s) { s.division.fields[2].space_bytes = std::uint64_t{1} << 62; },
  };
  for (std::size_t i = 0; i < std::size(lies); ++i) {
    auto part = part_of_three(1);
    lies[i](part);
    BOOST_TEST(!validate(part).ok(), "lie " << i);
    // Also where the identity fits.
    if (place_fields(part).ok())
      BOOST_TEST(!validate(part).ok(), "placed lie " << i);
  }
}

namespace {

// The first part of the set above, to which samples were appended.
set_info with_appends(std::size_t count) {
  auto out = part_of_three(0);
  for (std::size_t i = 0; i < count; ++i) {
    appended_samples more{
      random_id<set_id>(), static_cast<std::uint32_t>(2 * i), 10, 100 + i, 0, {}};
    for (auto& field : out.fields)
      more.fields.push_back(
        field.varies ? divided_field{40, 640} : divided_field{10 * field.bytes, 10 * field.bytes});
    out.appended.push_back(more);
  }
  return out;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_set_with_appends_is_described_as_one_of_all_samples) {
  auto part = with_appends(2);
  BOOST_TEST(validate(part).ok());
  auto base = base_of(part).value(), found = whole_of(part).value();
  BOOST_TEST((base == whole_of(part_of_three(0)).value()) == false); // another id
  BOOST_TEST(base.appended.empty());
  BOOST_TEST(base.samples == 1000u);
  auto all = varying();
  all.samples = 1020;
  for (auto& field : all.fields)
    if (field.varies) {
      field.data_bytes += 80;
      field.space_bytes += 1280;
    }
  all = placed(all);
  BOOST_TEST(found.samples == 1020u);
  BOOST_TEST(found.identity == all.identity);
  BOOST_TEST((found.fields == all.fields));
  BOOST_TEST((found.id == part.division.whole));
  BOOST_TEST(preloaded_samples(found) == 1000u);
  // The order of the appends counts, and so does each.
  auto source = [](set_info s) { return whole_of(s).value().source; };
  auto others = part;
  std::swap(others.appended[0].source, others.appended[1].source);
  BOOST_TEST(source(others) != found.source);
  others = part;
  others.appended[1].left_out = 5;
  BOOST_TEST(source(others) != found.source);
  others.appended.clear();
  BOOST_TEST(source(others) == part.source);
}

BOOST_AUTO_TEST_CASE(appends_that_lie_are_refused) {
  const std::function<void(set_info&)> lies[] = {
    [](auto& s) { s.appended[0].id = {}; },
    [](auto& s) { s.appended[0].fields.pop_back(); },
    [](auto& s) { s.appended[0].samples = 11; },
    [](auto& s) { s.appended[0].samples = std::numeric_limits<std::uint64_t>::max(); },
    [](auto& s) { s.appended[0].fields[0].data_bytes += 1; },
    [](auto& s) { s.appended[0].fields[2].space_bytes = 64 * 1000; },
    [](auto& s) { s.appended[0].fields[2].data_bytes = ~std::uint64_t{0}; },
    [](auto& s) { s.appended[1].number = 0; },
    [](auto& s) { s.appended = with_appends(appends_max + 1).appended; },
    [](auto& s) { s.extension.of = random_id<set_id>(); },
  };
  for (std::size_t i = 0; i < std::size(lies); ++i) {
    auto part = with_appends(2);
    lies[i](part);
    BOOST_TEST(!validate(part).ok(), "lie " << i);
  }
  auto rest = part_of_three(1);
  rest.appended = with_appends(1).appended;
  BOOST_TEST(!validate(rest).ok());
}

BOOST_AUTO_TEST_SUITE_END()
