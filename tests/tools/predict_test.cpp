// Tests `millrace predict broadcast`: its table, its JSON, its chart, and what it refuses.
#include "run.hpp"

#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <iterator>

using millrace::testing::run;
using nlohmann::json;

namespace {

struct fixture {
  millrace::testing::scratch_directory directory;

  std::string file(const std::string& name) const { return directory.path() + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream{file(name)} << text;
    return file(name);
  }
  static std::string read(const std::string& path) {
    std::ifstream in{path};
    return {std::istreambuf_iterator<char>{in}, {}};
  }
};

std::vector<std::string> with(std::vector<std::string> more) {
  std::vector<std::string> out{"predict", "broadcast"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

json predicted(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  auto o = run(with(std::move(arguments)));
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  return json::parse(o.out);
}

std::string refused(std::vector<std::string> arguments) {
  auto o = run(with(std::move(arguments)));
  BOOST_TEST(o.code == 2, o.err);
  BOOST_TEST(o.out.empty(), o.out);
  BOOST_TEST(std::count(o.err.begin(), o.err.end(), '\n') == 1, o.err);
  auto before = std::string{"millrace: predict broadcast: "};
  BOOST_TEST(o.err.starts_with(before), o.err);
  return o.err.substr(std::min(before.size(), o.err.size()));
}

double seconds(const json& row, const char* algorithm) {
  return row.at("algorithms").at(algorithm).at("seconds").get<double>();
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(predict_broadcast, fixture)

BOOST_AUTO_TEST_CASE(the_table_has_a_row_for_each_doubling_of_the_members) {
  auto o = run(with({"--members", "16..100", "--size", "2MiB"}));
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  BOOST_TEST(
    o.out.starts_with("2 MiB from each root to all members, in memory of the host\n"), o.out);
  for (auto* row : {"\n     16     16      1  ", "\n     32  ", "\n     64  ", "\n    100  "})
    BOOST_TEST(o.out.find(row) != o.out.npos, row << " is missing in " << o.out);
  BOOST_TEST(std::count(o.out.begin(), o.out.end(), '\n') == 7, o.out);
  BOOST_TEST(o.out.find("multicast\n") != o.out.npos, o.out);
  auto without = run(with({"--members", "16", "--no-multicast"})).out;
  BOOST_TEST(without.find("multicast") == without.npos, without);
}

// A ring of 4 hosts, 8 MB/s, without other costs, and few enough bytes for one chunk.
BOOST_AUTO_TEST_CASE(the_times_are_those_of_the_equations) {
  auto constants = write("c.json", R"({"host_bytes_per_s": 8e6, "setup_s": 0})");
  auto shown = predicted({"--members", "4", "--size", "4096", "--parameters", constants});
  auto& row = shown.at("predictions").at(0);
  BOOST_TEST(seconds(row, "ring") == 3 * 512e-6, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(seconds(row, "k-nomial") == 2 * 512e-6, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(row.at("algorithms").at("k-nomial").at("k") == 2);
  BOOST_TEST(row.at("algorithms").at("ring").at("chunk_bytes") == 4096);
  BOOST_TEST(row.at("choice") == "multicast");
  BOOST_TEST(shown.at("size_bytes") == 4096);
  BOOST_TEST(shown.at("parameters").at("host_bytes_per_s") == 8e6);
}

BOOST_AUTO_TEST_CASE(members_that_share_hosts_copy_there) {
  auto alone = predicted({"--members", "64"}).at("predictions").at(0);
  auto shared = predicted({"--members", "64", "--per-host", "8"}).at("predictions").at(0);
  auto named = predicted({"--members", "64", "--hosts", "8"}).at("predictions").at(0);
  BOOST_TEST(alone.at("hosts") == 64);
  BOOST_TEST(shared.at("hosts") == 8);
  BOOST_TEST(shared == named);
  auto one = predicted({"--members", "64", "--hosts", "1", "--size", "1000MiB"});
  // 63 copies at 10 GB/s.
  BOOST_TEST(
    seconds(one.at("predictions").at(0), "ring") == 63 * 1000 * 1048576e-10,
    boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(several_roots_take_longer_and_overlap) {
  auto at = [](const std::string& roots, const std::string& overlap) {
    return seconds(
      predicted({"--members", "32", "--roots", roots, "--overlap", overlap, "--no-multicast"})
        .at("predictions")
        .at(0),
      "k-nomial");
  };
  auto one = at("1", "0");
  BOOST_TEST(at("8", "0") == 8 * one, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(at("8", "0.25") == 6 * one, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(at("all", "0") == 32 * one, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(at("1", "0.25") == one, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(options_replace_constants_of_the_file) {
  auto constants = write("c.json", R"({"latency_s": 1, "host_copy_bytes_per_s": 5})");
  auto used = predicted({"--members", "4", "--parameters", constants, "--latency", "50us",
                         "--setup", "3us", "--bandwidth", "1GiB"})
                .at("parameters");
  BOOST_TEST(used.at("latency_s") == 50e-6);
  BOOST_TEST(used.at("setup_s") == 3e-6);
  BOOST_TEST(used.at("host_bytes_per_s") == 1073741824.0);
  BOOST_TEST(used.at("gpu_bytes_per_s") == 1073741824.0);
  BOOST_TEST(used.at("host_copy_bytes_per_s") == 5.0);
}

BOOST_AUTO_TEST_CASE(what_is_printed_as_parameters_is_read_again) {
  auto shown = predicted({"--members", "16..64", "--memory", "gpu", "--latency", "5us"});
  auto constants = write("c.json", shown.at("parameters").dump());
  BOOST_TEST(
    predicted({"--members", "16..64", "--memory", "gpu", "--parameters", constants}) == shown);
  auto whole = write("all.json", shown.dump());
  BOOST_TEST(predicted({"--members", "16..64", "--memory", "gpu", "--parameters", whole}) == shown);
}

BOOST_AUTO_TEST_CASE(the_chart_has_a_line_for_each_algorithm) {
  auto path = file("out.svg");
  auto o = run(with({"--members", "16..4096", "--plot", path}));
  BOOST_TEST_REQUIRE(o.code == 0, o.err);
  auto svg = read(path);
  BOOST_TEST(svg.starts_with("<svg "));
  BOOST_TEST(svg.ends_with("</svg>\n"));
  for (auto* name : {">ring<", ">k-nomial<", ">multicast<", ">4096<", ">1.00 ms<"})
    BOOST_TEST(svg.find(name) != svg.npos, name << " is missing in " << svg);
  BOOST_TEST(svg.find("nan") == svg.npos);
  BOOST_TEST(svg.find("inf") == svg.npos);
  // One point, and one time.
  BOOST_TEST(run(with({"--members", "2", "--no-multicast", "--plot", path})).code == 0);
  svg = read(path);
  BOOST_TEST(svg.find("nan") == svg.npos, svg);
  auto bad = run(with({"--plot", directory.path() + "/absent/out.svg"}));
  BOOST_TEST(bad.code == 1);
  BOOST_TEST(bad.err.find("/absent/out.svg: No such file or directory") != bad.err.npos, bad.err);
}

BOOST_AUTO_TEST_CASE(options_that_make_no_sense_are_refused_with_a_remedy) {
  for (auto* members : {"1", "x", "16..", "..16", "32..16", "16..65537", "16..64..128", ""})
    BOOST_TEST(
      refused({"--members", members}) ==
      std::string{"--members "} + members + ": a number from 2 to 65536, or two as 16..4096\n");
  BOOST_TEST(refused({"--size", "2M"}).find("did you mean '2MiB'?") != std::string::npos);
  BOOST_TEST(refused({"--size", "0"}) == "--size 0: a size from 1 to 1024TiB\n");
  BOOST_TEST(
    refused({"--members", "16..64", "--hosts", "32"}) ==
    "--hosts 32: 16 members are on 16 hosts at most; let --members begin at 32\n");
  BOOST_TEST(refused({"--hosts", "2", "--per-host", "2"}).find("excludes") != std::string::npos);
  BOOST_TEST(refused({"--per-host", "0"}).find("0 is not between 1 and") != std::string::npos);
  for (auto* roots : {"0", "17", "some"})
    BOOST_TEST(
      refused({"--members", "16", "--roots", roots}) ==
      std::string{"--roots "} + roots + ": a number from 1 to 16, the members, or all\n");
  for (auto* overlap : {"1", "-0.1", "nan", "0.5x", "half"})
    BOOST_TEST(
      refused({std::string{"--overlap="} + overlap}) ==
      std::string{"--overlap "} + overlap + ": a part from 0 to below 1, such as 0.2\n");
  BOOST_TEST(refused({"--memory", "disk"}) == "--memory disk: host or gpu\n");
  BOOST_TEST(
    refused({"--bandwidth", "0"}) == "--bandwidth 0: a size above 0, such as 12500000000\n");
  BOOST_TEST(refused({"--latency", "5"}).find("did you mean '5s'?") != std::string::npos);
  BOOST_TEST(refused({"--plott", "x"}).find("did you mean '--plot'?") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_file_of_constants_that_is_wrong_is_named_with_the_reason) {
  auto why = [&](const std::string& text) {
    auto path = write("c.json", text);
    auto said = refused({"--parameters", path});
    BOOST_TEST(said.starts_with(path + ": "), said);
    return said.substr(std::min(path.size() + 2, said.size()));
  };
  BOOST_TEST(why(R"({"setup": 1})") == "no constant is called 'setup'; did you mean 'setup_s'?\n");
  BOOST_TEST(why(R"({"setup_s": "1"})") == "setup_s: \"1\" is not a number\n");
  BOOST_TEST(why(R"({"setup_s": -1})") == "setup_s: -1 is not between 0 and 1000000\n");
  BOOST_TEST(
    why(R"({"host_bytes_per_s": 0})") ==
    "host_bytes_per_s: 0 is not between 1 and 1000000000000000\n");
  auto example = "not an object of constants, such as {\"host_bytes_per_s\": 1e9}\n";
  BOOST_TEST(why("[1]") == example);
  BOOST_TEST(why(R"({"parameters": 3})") == example);
  auto folder = refused({"--parameters", directory.path()});
  BOOST_TEST(folder.starts_with(directory.path() + ": it cannot be read"), folder);
  BOOST_TEST(why("").starts_with("parse error at line 1, column 1"));
  BOOST_TEST(why(R"({"setup_s": 1e999})") == "number overflow parsing '1e999'\n");
  BOOST_TEST(
    refused({"--parameters", "/absent.json"}) ==
    "opening the constants /absent.json: No such file or directory\n");
}

BOOST_AUTO_TEST_SUITE_END()
