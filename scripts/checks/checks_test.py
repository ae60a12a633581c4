"""Tests of the checks themselves. Run by `scripts/lint scripts`."""
import sys
import unittest

sys.dont_write_bytecode = True

import includes
import sizes

SOURCE = r'''
namespace a {
struct x : y<decltype(f())> {
  x(int a) : a_{a}, b_(2), c_{3} {
    foo();
  }
  int a_ = 1'000;
  char q = '{', r = '"';
};
template <class T, class = std::enable_if_t<(sizeof(T) > 1)>>
auto big(T t) -> std::vector<int> {
  auto l = [&] { return "}"; };
  return {};
}
BOOST_AUTO_TEST_SUITE(suite)

BOOST_AUTO_TEST_CASE(a_property_holds) {
  BOOST_TEST(R"({{{)" == "");
}
x::x(int a)
  : a_{a},
    b_{2} {
}
actor::behavior_type make(int x) {
  return {
    [](int) {},
  };
}
}
'''


class the_sizes_check(unittest.TestCase):
    def test_measures_every_function_from_its_first_line_to_its_brace(self):
        self.assertEqual(
            [(name, lines) for name, _, lines in sizes.functions_of(SOURCE)],
            [("x", 3), ("big", 5), ("a_property_holds", 3), ("x::x", 4), ("make", 5)])

    def judge(self, lines, allowed):
        return sizes.judge("f", "f:1", lines, 70, allowed, set())

    def test_refuses_what_is_too_large(self):
        self.assertEqual([self.judge(70, {}), self.judge(71, {})], [0, 1])

    def test_lets_a_noted_number_only_shrink(self):
        verdicts = [self.judge(lines, {"f": 80}) for lines in (81, 80, 79, 70)]
        self.assertEqual(verdicts, [1, 0, 1, 1])


class the_includes_check(unittest.TestCase):
    def faults(self, path, header, style="<"):
        return len(list(includes.faults_of(path, style, header)))

    def test_refuses_an_arrow_that_points_upwards_or_sideways(self):
        self.assertEqual(self.faults("core/ids.cpp", "millrace/storage/bucket.hpp"), 1)
        self.assertEqual(self.faults("transport/a.cpp", "millrace/storage/bucket.hpp"), 1)
        self.assertEqual(self.faults("actors/a.cpp", "millrace/storage/bucket.hpp"), 0)
        self.assertEqual(self.faults("tools/main.cpp", "millrace/storage/bucket.hpp"), 0)

    def test_keeps_a_library_in_its_folder(self):
        self.assertEqual(self.faults("storage/memory/a.cpp", "rocksdb/db.h"), 1)
        self.assertEqual(self.faults("storage/rocksdb/a.cpp", "rocksdb/db.h"), 0)
        self.assertEqual(self.faults("transport/a.cpp", "caf/all.hpp"), 1)
        self.assertEqual(self.faults("tests/actors/a.cpp", "caf/all.hpp"), 0)

    def test_refuses_what_does_not_exist_or_climbs_out(self):
        self.assertEqual(self.faults("actors/a.cpp", "millrace/core/nothing.hpp"), 1)
        self.assertEqual(self.faults("core/ids.cpp", "../storage/bucket.hpp", '"'), 1)

    def named(self, path, line):
        kinds = [("transport", "tcp"), ("storage", "memory")]
        return [kind for pattern, kind in includes.names_of_kinds(path, kinds) if pattern.search(line)]

    def test_keeps_the_names_of_kinds_in_their_folders(self):
        include = "#include <millrace/transport/tcp/tcp_options.hpp>"
        self.assertEqual(self.named("transport/fabric.cpp", include), ["tcp"])
        self.assertEqual(self.named("runtime/node/engine.cpp", "o.edit<tcp_options>()"), ["tcp"])
        self.assertEqual(self.named("config/read.cpp", 'key == "tcp"'), ["tcp"])
        self.assertEqual(self.named("config/read.cpp", 'key == "memory"'), [])
        self.assertEqual(self.named("runtime/node/node.cpp", "storage::memory_bucket_options o;"), ["memory"])
        for path in ("transport/builtin.cpp", "transport/tcp/gate.cpp", "tests/transport/tcp_test.cpp"):
            self.assertEqual(self.named(path, include), [])


if __name__ == "__main__":
    sys.stdout = sys.stderr
    unittest.main()
