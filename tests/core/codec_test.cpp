// Tests the wire codec: round trips, versions that differ, and bytes that lie.
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/model.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;

namespace {

struct old_message {
  std::uint32_t a = 1;
  std::string b = "b";
};
template <class I>
typename I::result_type inspect(I& f, old_message& x) {
  return f(x.a, x.b);
}

struct new_message {
  std::uint32_t a = 1;
  std::string b = "b";
  std::vector<std::uint64_t> c = {7};
};
template <class I>
typename I::result_type inspect(I& f, new_message& x) {
  return f(x.a, x.b, x.c);
}

model_record sample() {
  model_record record;
  record.spec.name = "resnet/run7";
  record.spec.tensors.tensors = {{"w", dtype::bf16, {4, 5}}, {"b", dtype::f32, {}}};
  record.spec.metadata = {{"epoch", "3"}};
  record.spec.pinned = true;
  record.version = 1ull << 63;
  record.digests = {1, ~0ull};
  return record;
}

// A handle field by field as it stands on the wire, where all versions so far have written it.
struct listed_handle {
  peer_id owner;
  std::uint64_t region = 0;
  region_key key;
  access_mode allows = access_mode::read;
  std::vector<segment> ranges;
  std::vector<std::string> reserved;
  bool on_device = false;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, listed_handle& x) {
  return f(x.owner, x.region, x.key, x.allows, x.ranges, x.reserved, x.on_device);
}

} // namespace

BOOST_AUTO_TEST_SUITE(codec)

BOOST_AUTO_TEST_CASE(a_record_reads_back_equal) {
  auto bytes = encode(sample());
  BOOST_TEST((decode<model_record>(bytes, "record").value() == sample()));
}

BOOST_AUTO_TEST_CASE(a_handle_reads_back_equal) {
  bulk_handle handle{random_id<peer_id>(), 42,         random_id<region_key>(),
                     access_mode::write,   1ull << 40, true};
  BOOST_TEST((decode<bulk_handle>(encode(handle), "handle").value() == handle));
  handle.length_bytes.reset();
  BOOST_TEST((decode<bulk_handle>(encode(handle), "handle").value() == handle));
}

BOOST_AUTO_TEST_CASE(a_handle_has_a_list_of_ranges_on_the_wire) {
  listed_handle listed{{}, 42, {}, access_mode::write, {{0, 7}}, {}, true};
  bulk_handle handle{{}, 42, {}, access_mode::write, 7, true};
  BOOST_TEST((encode(handle) == encode(listed)));
  listed.ranges.clear();
  handle.length_bytes.reset();
  BOOST_TEST((encode(handle) == encode(listed)));
  listed.ranges = {{0, 7}, {9, 3}};
  BOOST_TEST(decode<bulk_handle>(encode(listed), "handle")->length_bytes.value() == 10u);
  listed.ranges.push_back({0, ~0ull});
  BOOST_TEST(decode<bulk_handle>(encode(listed), "handle")->length_bytes.value() == ~0ull);
}

BOOST_AUTO_TEST_CASE(an_older_reader_skips_what_it_does_not_know) {
  auto read = decode<old_message>(encode(new_message{5, "x", {1, 2}}), "m");
  BOOST_TEST(read->a == 5u);
  BOOST_TEST(read->b == "x");
}

BOOST_AUTO_TEST_CASE(a_newer_reader_keeps_defaults_for_what_is_missing) {
  auto read = decode<new_message>(encode(old_message{5, "x"}), "m");
  BOOST_TEST(read->b == "x");
  BOOST_TEST((read->c == std::vector<std::uint64_t>{7}));
}

BOOST_AUTO_TEST_CASE(every_truncation_is_an_error) {
  auto bytes = encode(sample());
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    auto cut = decode<model_record>({bytes.data(), n}, "record");
    BOOST_TEST((!cut && cut.error().code() == errc::protocol_error));
  }
}

BOOST_AUTO_TEST_CASE(a_length_that_lies_allocates_nothing) {
  byte_buffer bytes;
  wire_writer writer{bytes};
  writer.varint(1ull << 62);
  wire_reader reader{bytes};
  std::vector<std::uint64_t> out;
  reader(out);
  BOOST_TEST(!reader.ok());
  BOOST_TEST(out.capacity() == 0u);
}

BOOST_AUTO_TEST_CASE(many_small_records_are_stopped_by_the_memory_bound) {
  // One byte each on the wire, some 70 in memory.
  byte_buffer bytes(1u << 20, std::byte{0});
  byte_buffer framed;
  wire_writer{framed}.varint(bytes.size());
  framed.insert(framed.end(), bytes.begin(), bytes.end());
  wire_reader reader{framed, {.decoded_bytes_max = 1u << 20}};
  std::vector<tensor_desc> out;
  reader(out);
  BOOST_TEST(!reader.ok());
  BOOST_TEST(out.capacity() == 0u);
}

BOOST_AUTO_TEST_CASE(numbers_beyond_their_field_are_refused) {
  byte_buffer bytes;
  wire_writer{bytes}(std::uint64_t{1} << 40);
  wire_reader reader{bytes};
  std::uint32_t out = 0;
  reader(out);
  BOOST_TEST(!reader.ok());
}

BOOST_AUTO_TEST_SUITE_END()
