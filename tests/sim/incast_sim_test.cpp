// Eight data servers answer one reader at once, through a switch whose buffer is bounded: what a
// client loses there when it paces its reads, and when it does not.
#include <millrace/tests/sim/cluster.hpp>
#include <millrace/tests/sim/data_rank.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <optional>
#include <string>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr auto data_lines = "data: { capacity: 16MiB, region_size: 8MiB }\n";
constexpr auto no_bounds = "reading: { staging: 1GiB, inflight_min: 1GiB, inflight_max: 1GiB }\n";
constexpr std::uint64_t servers = 8, batches = 60;

struct measured {
  double lost = 0; // the part of the packets
  double seconds = 0;
};

// A rank reads a set that is divided among the servers, batch after batch.
class incast {
public:
  explicit incast(const std::string& lines) : c_(1, {}, data_lines + lines) {
    files_.samples = 1000;
    files_.bytes_max = 50u << 10;
    files_.write(c_.directory() + "/files");
    job_.nodes.reserve(servers);
    for (std::uint64_t i = 0; i < servers; ++i)
      job_.nodes.push_back({std::string(1, static_cast<char>('a' + i))});
    for (auto& one : job_.nodes)
      demand(c_.start(job_.nodes, one.rests).ok(), "a node starts");
    job_.files = files_;
    job_.elsewhere = true;
    job_.how.servers = servers;
    job_.reading.batch_size = 64;
    job_.reading.fields = {"x"};
    job_.reading.remainder = remainder_kind::drop;
    job_.ledger.emplace(files_.samples, job_.reading.remainder, 0, shuffle_kind::full());
    job_.ledger->begin({job_.reading.batch_size, 1}, {});
    data_operator preloads{job_};
    preloads.begin_preload("job", files_);
    await([&] { return preloads.done(); });
    preloads.check();
  }

  measured read() {
    data_rank reader{job_, 0, {}};
    auto port = c_.net->bound_port(reader.in(), {});
    await([&] { return job_.ledger->batches() > 0; });
    auto since = c_.in.now();
    await([&] {
      reader.check();
      return job_.ledger->batches() > batches;
    });
    return {
      static_cast<double>(port->lost()) / static_cast<double>(port->packets()),
      std::chrono::duration<double>(c_.in.now() - since).count()};
  }

private:
  template <class Holds>
  void await(Holds holds) {
    for (auto until = c_.in.now() + 600s; !holds();) {
      c_.in.run_for(100us);
      demand(c_.in.now() < until, "reads go on");
    }
  }

  cluster c_;
  sample_files files_;
  data_job job_{c_};
};

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

// Source: the loading paper, section 4.4: incast.
BOOST_AUTO_TEST_CASE(eight_servers_overrun_a_switch_less_when_the_reader_paces) {
  auto paced = incast{""}.read(), unpaced = incast{no_bounds}.read();
  BOOST_TEST_MESSAGE(fmt::format(
    "lost: {:.3f} in {:.3f} s, paced {:.3f} in {:.3f} s", unpaced.lost, unpaced.seconds, paced.lost,
    paced.seconds));
  BOOST_TEST(unpaced.lost > 0.1);
  BOOST_TEST(paced.lost < unpaced.lost / 2);
  BOOST_TEST(paced.seconds < unpaced.seconds);
}

BOOST_AUTO_TEST_SUITE_END()
