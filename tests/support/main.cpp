// The entry point of every Boost.Test program. `test_net -- io_loop_test.cpp` runs the cases of
// that file alone: a program holds the tests of a whole room, CTest runs it once for each entry.
// The last line of output counts what passed, failed and was skipped, for scripts/test.
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/results_collector.hpp>
#include <boost/test/tree/observer.hpp>
#include <boost/test/tree/traverse.hpp>
#include <boost/test/tree/visitor.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <iostream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace ut = boost::unit_test;

namespace {

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

/// Collects the cases of other files.
class others : public ut::test_tree_visitor {
public:
  explicit others(std::vector<std::string_view> files) : files_(std::move(files)) {}
  const std::vector<ut::test_unit_id>& found() const { return found_; }
  bool all() const { return all_; }

private:
  void visit(const ut::test_case& c) override {
    auto file = base_name({c.p_file_name.begin(), c.p_file_name.size()});
    if (std::find(files_.begin(), files_.end(), file) != files_.end())
      all_ = false;
    else
      found_.push_back(c.p_id);
  }

  std::vector<std::string_view> files_;
  std::vector<ut::test_unit_id> found_;
  bool all_ = true;
};

// Makes the cases of data-driven tests, which are otherwise made after `init`.
class generators : public ut::test_tree_visitor {
  bool test_suite_start(const ut::test_suite& s) override {
    const_cast<ut::test_suite&>(s).generate();
    return true;
  }
};

class tally : public ut::test_observer {
public:
  bool skips = false; // the test that runs
  int passed = 0, failed = 0, skipped = 0;

private:
  void test_unit_start(const ut::test_unit& unit) override {
    if (unit.p_type == ut::TUT_CASE)
      skips = false;
  }
  void test_unit_finish(const ut::test_unit& unit, unsigned long) override {
    if (unit.p_type != ut::TUT_CASE)
      return;
    auto good = ut::results_collector.results(unit.p_id).passed();
    ++(!good ? failed : skips ? skipped : passed);
  }
  // After the collector of results.
  int priority() override { return std::numeric_limits<int>::max(); }
};

tally counts;

bool init() {
  ut::framework::register_observer(counts);
  auto& all = ut::framework::master_test_suite();
  all.p_name.value = "millrace";
  if (all.argc < 2)
    return true;
  generators all_cases;
  ut::traverse_test_tree(all, all_cases, true);
  others unwanted{{all.argv + 1, all.argv + all.argc}};
  ut::traverse_test_tree(all, unwanted, true);
  if (unwanted.all())
    throw ut::framework::setup_error("no test is in a file of this name");
  for (auto id : unwanted.found()) {
    auto& c = ut::framework::get<ut::test_case>(id);
    ut::framework::get<ut::test_suite>(c.p_parent_id).remove(id);
  }
  return true;
}

} // namespace

void millrace::testing::skipped(const std::string& what) {
  std::cout << "skipped: " << what << std::endl;
  counts.skips = true;
}

int main(int argc, char** argv) {
  auto status = ut::unit_test_main(&init, argc, argv);
  if (counts.passed + counts.failed + counts.skipped == 0)
    return status;
  std::cout << "tests: " << counts.passed << " passed, " << counts.failed << " failed, "
            << counts.skipped << " skipped" << std::endl;
  return status == 0 && counts.passed == 0 ? 77 : status;
}
