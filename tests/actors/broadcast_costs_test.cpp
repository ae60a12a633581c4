// Tests the equations of broadcasts with values computed by hand, and what is chosen by them.
#include <millrace/actors/broadcast/broadcast_choice.hpp>

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <set>
#include <string>

using namespace millrace::actors;

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

// Numbers with which each term of an equation shows.
broadcast_costs plain_costs() {
  broadcast_costs c;
  c.setup_s = 1;
  c.packet_setup_s = 3;
  c.multicast_a_per_s = 2;
  c.chunk_bytes = 10;
  c.packet_bytes = 4;
  c.host_bytes_per_s = 40;
  c.gpu_bytes_per_s = 10;
  c.host_to_gpu_bytes_per_s = 5;
  c.latency_s = 0;
  c.host_copy_bytes_per_s = 8;
  return c;
}

broadcast_case case_of(std::uint32_t members, std::uint64_t bytes) {
  broadcast_case out;
  out.members = out.hosts = members;
  out.bytes = bytes;
  out.multicast = true;
  return out;
}

struct fixture {
  const broadcast_costs c = plain_costs();
  const double ln8 = std::log(8.0);
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(broadcast_costs_of, fixture, *boost::unit_test::tolerance(1e-9))

BOOST_AUTO_TEST_CASE(rings_have_the_values_of_equations_1_to_3) {
  BOOST_TEST(ring_s(c, 8, 40) == 7 * (1 + 4.0));
  BOOST_TEST(ring_pipelined_s(c, 8, 40) == (4 + 6) * (1 + 1.0));
  BOOST_TEST(ring_staged_s(c, 8, 40) == 8 + 7 * (1 + 1.0));
  // A ring of two is one link.
  BOOST_TEST(ring_pipelined_s(c, 2, 40) == 4 * (1 + 1.0));
}

BOOST_AUTO_TEST_CASE(trees_have_the_values_of_equations_4_to_6) {
  BOOST_TEST(knomial_s(c, 8, 2, 40) == 3 * (1 + 4.0));
  BOOST_TEST(knomial_s(c, 8, 3, 40) == 2 * (1 + 4.0));
  BOOST_TEST(knomial_staged_s(c, 8, 2, 40) == 8 + 3 * (1 + 1.0));
  BOOST_TEST(knomial_pipelined_s(c, 8, 2, 40) == 4 * 3 * (1 + 1.0));
  BOOST_TEST(knomial_pipelined_s(c, 8, 3, 40) == 4 * 2 * (1 + 1.0));
}

// With k = 3 and 8 members the root has the children 6, 3, 2 and 1.
BOOST_AUTO_TEST_CASE(trees_take_as_many_steps_for_a_chunk_as_the_root_has_children) {
  BOOST_TEST(knomial_one_port_s(c, 8, 3, 40) == 4 * 4 * (1 + 1.0));
  BOOST_TEST(knomial_one_port_s(c, 8, 2, 40) == knomial_pipelined_s(c, 8, 2, 40));
  for (auto k : {3u, 4u, 5u})
    BOOST_TEST(
      knomial_one_port_s(c, k * k * k, k, 40) ==
      (k - 1) * knomial_pipelined_s(c, k * k * k, k, 40));
}

BOOST_AUTO_TEST_CASE(multicasts_have_the_values_of_equations_7_8_and_10) {
  BOOST_TEST(multicast_overhead_s(c, 8) == ln8 / 2);
  BOOST_TEST(multicast_overhead_s(c, 1) == 0.0);
  BOOST_TEST(multicast_s(c, 8, 40) == 10 * (3 + ln8 / 2 + 0.4));
  BOOST_TEST(multicast_staged_s(c, 8, 40) == 2 + 10 * (3 + ln8 / 2 + 0.1));
  BOOST_TEST(multicast_host_s(c, 8, 40) == 10 * (3 + ln8 / 2 + 0.1));
}

BOOST_AUTO_TEST_CASE(equation_8_holds_while_copies_are_faster_than_packets) {
  BOOST_TEST(multicast_copied_s(c, 8, 40) == multicast_staged_s(c, 8, 40));
  auto slow = c;
  slow.host_to_gpu_bytes_per_s = 0.5; // 20 s for a chunk; its packets take 10.3 s
  auto send_s = 2.5 * (3 + ln8 / 2 + 0.1);
  BOOST_TEST(multicast_copied_s(slow, 8, 40) == 4 * 20 + send_s);
  BOOST_TEST(multicast_staged_s(slow, 8, 40) < multicast_copied_s(slow, 8, 40));
}

BOOST_AUTO_TEST_CASE(several_sources_have_the_values_of_equations_9_and_11) {
  BOOST_TEST(several_sources_s(10, 4, 0.25) == 30.0);
  BOOST_TEST(several_sources_s(10, 4, 0) == 40.0);
  BOOST_TEST(overlap_of(10, 30, 4) == 0.25);
  for (auto overlap : {0.0, 0.2, 0.9})
    BOOST_TEST(overlap_of(7, several_sources_s(7, 16, overlap), 16) == overlap);
}

BOOST_AUTO_TEST_CASE(members_of_one_host_copy_at_its_rate) {
  BOOST_TEST(shared_host_s(c, 8, 40) == 7 * 40 / 8.0);
  BOOST_TEST(shared_host_s(c, 1, 40) == 0.0);
  auto of = case_of(8, 40);
  of.hosts = 1;
  for (auto algorithm : {broadcast_algorithm::ring, broadcast_algorithm::knomial})
    for (auto chunk : {40u, 10u, 3u})
      BOOST_TEST(predicted_s(c, of, {algorithm, 2, chunk}) == 35.0);
}

BOOST_AUTO_TEST_CASE(rounds_are_whole_powers_rounded_up) {
  BOOST_TEST(knomial_rounds(1, 2) == 0u);
  BOOST_TEST(knomial_rounds(2, 2) == 1u);
  BOOST_TEST(knomial_rounds(1024, 2) == 10u);
  BOOST_TEST(knomial_rounds(1025, 2) == 11u);
  BOOST_TEST(knomial_rounds(81, 3) == 4u);
  BOOST_TEST(knomial_rounds(82, 3) == 5u);
  BOOST_TEST(knomial_rounds(UINT64_MAX, 2) == 64u);
}

// Section 7.2 measures about 6 GB/s for 2 MiB to 16 hosts.
BOOST_AUTO_TEST_CASE(the_units_that_are_meant_give_the_rate_that_the_paper_measures) {
  broadcast_costs meant;
  auto rate = 2 * mib / multicast_staged_s(meant, 16, 2 * mib);
  BOOST_TEST(rate > 5.4e9);
  BOOST_TEST(rate < 7e9);
  auto printed = meant;
  printed.multicast_a_per_s = 17.5;
  BOOST_TEST(multicast_staged_s(printed, 16, 2 * mib) > 60);
  printed = meant;
  printed.host_to_gpu_bytes_per_s = 1e9;
  BOOST_TEST(2 * mib / multicast_copied_s(printed, 16, 2 * mib) < 1e9);
}

BOOST_AUTO_TEST_CASE(each_constant_is_listed_once) {
  std::set<std::string> names;
  broadcast_costs changed;
  for (auto& one : broadcast_constants()) {
    names.emplace(one.name);
    changed.*one.value = -1;
  }
  BOOST_TEST(names.size() == broadcast_constants().size());
  BOOST_TEST(sizeof(broadcast_costs) == names.size() * sizeof(double));
  for (auto& one : broadcast_constants())
    BOOST_TEST((changed.*one.value == -1));
}

BOOST_AUTO_TEST_CASE(predictions_have_the_shape_of_figure_14) {
  broadcast_costs usual;
  auto at = [&](broadcast_algorithm algorithm, std::uint32_t members) {
    return best_of(usual, case_of(members, 2 * mib), algorithm).predicted_s;
  };
  using enum broadcast_algorithm;
  for (std::uint32_t members = 16; members < 4096; members *= 2)
    for (auto algorithm : {ring, knomial, multicast})
      BOOST_TEST(at(algorithm, members) <= at(algorithm, 2 * members));
  BOOST_TEST(at(ring, 4096) > 10 * at(ring, 16));
  BOOST_TEST(at(knomial, 4096) < 4 * at(knomial, 16));
  BOOST_TEST(at(multicast, 4096) < 2 * at(multicast, 16));
  BOOST_TEST(at(multicast, 4096) < at(knomial, 4096));
  BOOST_TEST(at(knomial, 4096) < at(ring, 4096));
}

BOOST_AUTO_TEST_CASE(the_choice_is_the_shortest_prediction) {
  broadcast_costs usual;
  for (std::uint32_t members : {2u, 3u, 16u, 100u, 4096u})
    for (std::uint64_t bytes : {std::uint64_t{1}, 64 * kib, 2 * mib, 1024 * mib}) {
      auto of = case_of(members, bytes);
      of.multicast = false;
      auto chosen = choose_broadcast(usual, of);
      BOOST_TEST((chosen.scheme.algorithm != broadcast_algorithm::multicast));
      BOOST_TEST(chosen.predicted_s == predicted_s(usual, of, chosen.scheme));
      for (auto algorithm : {broadcast_algorithm::ring, broadcast_algorithm::knomial})
        for (unsigned k : {2u, 3u, 4u, 8u})
          for (auto chunk : {bytes, std::min(bytes, 16 * kib), std::min(bytes, 512 * kib)})
            BOOST_TEST(chosen.predicted_s <= predicted_s(usual, of, {algorithm, k, chunk}));
    }
}

BOOST_AUTO_TEST_CASE(small_messages_take_trees_and_large_ones_rings) {
  broadcast_costs usual;
  auto of = case_of(64, 4 * kib);
  of.multicast = false;
  BOOST_TEST((choose_broadcast(usual, of).scheme.algorithm == broadcast_algorithm::knomial));
  of.bytes = 1024 * mib;
  BOOST_TEST((choose_broadcast(usual, of).scheme.algorithm == broadcast_algorithm::ring));
  of.multicast = true;
  usual.packet_setup_s = 1; // a network that is slow at it
  BOOST_TEST((choose_broadcast(usual, of).scheme.algorithm == broadcast_algorithm::ring));
}

BOOST_AUTO_TEST_CASE(a_long_latency_makes_trees_flat) {
  broadcast_costs far;
  far.latency_s = 1e-3;
  auto of = case_of(16, 1);
  auto best = best_of(far, of, broadcast_algorithm::knomial);
  BOOST_TEST(knomial_depth(16, best.scheme.k) == 1u);
  BOOST_TEST(best.predicted_s > 1e-3);
  BOOST_TEST(best.predicted_s < 1.1e-3);
}

BOOST_AUTO_TEST_CASE(several_roots_never_undercut_the_ports_of_receivers) {
  auto of = case_of(8, 40);
  of.roots = 8;
  broadcast_scheme ring{broadcast_algorithm::ring, 2, 10};
  of.overlap = 0;
  BOOST_TEST(predicted_s(c, of, ring) == 8 * (4 + 6) * (1 + 0.25));
  of.overlap = 0.5;
  BOOST_TEST(predicted_s(c, of, ring) == 4 * (4 + 6) * (1 + 0.25));
  of.overlap = 0.95; // 5 s, but each host receives 7 × 40 bytes
  BOOST_TEST(least_s(c, of) == 7.0);
  BOOST_TEST(predicted_s(c, of, ring) == 7.0);
  of.hosts = 1; // on one host nothing overlaps
  BOOST_TEST(predicted_s(c, of, ring) == 8 * 35.0);
}

BOOST_AUTO_TEST_CASE(the_usual_overlap_grows_with_the_roots) {
  using enum broadcast_algorithm;
  BOOST_TEST(usual_overlap(multicast, 16) == 0.2);
  BOOST_TEST(usual_overlap(ring, 16) == 0.5);
  BOOST_TEST(usual_overlap(knomial, 16) == 0.0);
  BOOST_TEST(usual_overlap(multicast, 64) == 0.3);
  for (auto algorithm : {ring, knomial, multicast}) {
    BOOST_TEST(usual_overlap(algorithm, 1) == 0.0);
    BOOST_TEST(usual_overlap(algorithm, 2) >= 0.0);
    BOOST_TEST(usual_overlap(algorithm, broadcast_members_max) <= 0.95);
  }
}

BOOST_AUTO_TEST_SUITE_END()
