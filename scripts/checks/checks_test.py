"""Tests of the checks themselves. Run by `scripts/lint scripts`."""
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True

import includes
import quotes
import sizes


def script(name):
    """A command of scripts/ as a module."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), name)
    spec = importlib.util.spec_from_loader(name, importlib.machinery.SourceFileLoader(name, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


performance = script("performance")

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

    def test_refuses_wide_comments_alone(self):
        text = "x" * 98
        self.assertEqual(sizes.wide_comments("f", f"// {text[1:]}\n  code({text});\n/// é{text[4:]}\n"), 0)
        self.assertEqual(sizes.wide_comments("f", f"  // {text}\n"), 1)

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
        self.assertEqual(self.named("config/read.cpp", '"lower `memory.size`"'), ["memory"])
        self.assertEqual(self.named("runtime/node/node.cpp", "storage::memory_bucket_options o;"), ["memory"])
        for path in ("transport/builtin.cpp", "transport/tcp/stream.cpp", "tests/transport/tcp_test.cpp"):
            self.assertEqual(self.named(path, include), [])


    def test_finds_all_headers_that_are_installed(self):
        tree = {
            "runtime/a.hpp": ["#include <millrace/core/b.hpp>", "#include <vector>", "#include <millrace/version.hpp>"],
            "core/b.hpp": ["#include <millrace/core/c.hpp>"],
            "core/c.hpp": ["#include <millrace/core/b.hpp>"],
            "core/d.hpp": []}
        self.assertEqual(
            includes.installed_headers(["runtime/a.hpp"], tree.get), {"runtime/a.hpp", "core/b.hpp", "core/c.hpp"})

    def test_lets_public_headers_show_their_own_types_only(self):
        shown = [
            "#include <vector>", "#include <fmt/core.h>", "#include <millrace/core/receipts.hpp>",
            "#include <millrace/version.hpp>", "  future<load_receipt> load(); // actors::load_reply travels",
            "  config::settings s;", "  std::shared_ptr<runtime::client_core> core_;"]
        hidden = [
            "#include <caf/all.hpp>", "#include <rocksdb/db.h>", "#include <libpmemobj.h>", "#include <sys/mman.h>",
            "#include <infiniband/verbs.h>", "#include <millrace/actors/service.hpp>",
            "#include <millrace/storage/bucket.hpp>", "  future<actors::load_reply> load();",
            "using path = ::millrace::transport::path;", "  caf::actor who;", "  ibv_mr* memory;", "  PMEMobjpool* p;"]
        self.assertEqual([line for line in shown if list(includes.faults_of_public(line))], [])
        self.assertEqual([line for line in hidden if not list(includes.faults_of_public(line))], [])


class the_quotes_check(unittest.TestCase):
    FILE = "int main() {\n  first();\n  second();\n\n  third();\n}\n"

    def faults(self, *block, named="a.cpp"):
        marker = [f"<!-- {named} -->"] if named else []
        lines = ["Words.", "", *marker, "```cpp", *block, "```"]
        return [fault for _, fault in quotes.faults_of(lines, {"a.cpp": self.FILE}.get)]

    def test_takes_lines_that_stand_together_whatever_their_indentation(self):
        self.assertEqual(self.faults("first();", "second();"), [])
        self.assertEqual(self.faults("    second();", "", "    third();"), [])

    def test_takes_an_ellipsis_for_what_was_left_out(self):
        self.assertEqual(self.faults("int main() {", "  // ...", "  third();"), [])

    def test_refuses_what_the_file_does_not_have_in_this_order(self):
        self.assertEqual(self.faults("first();", "third();"), ["a.cpp does not have this: first();"])
        self.assertEqual(self.faults("third();", "...", "first();"), ["a.cpp does not have this: first();"])

    def test_refuses_code_of_no_file_or_of_one_that_is_gone(self):
        self.assertEqual(len(self.faults("first();", named=None)), 1)
        cmake = ["```cmake", "project(a)", "```"]
        self.assertEqual([n for n, _ in quotes.faults_of(cmake, {}.get)], [1])
        self.assertEqual(self.faults("first();", named="b.cpp"), ["b.cpp does not exist"])

    def test_follows_links_and_paths_outside_of_code(self):
        there = {"docs/a.md", "core/ids.hpp"}.__contains__
        lines = ["[a](a.md#part) [b](b.md) [c](https://c)", "```", "[d](d.md) `core/d`", "```", "`core/ids` `core/none`"]
        self.assertEqual([n for n, _ in quotes.broken_links("docs", lines, there)], [1])
        self.assertEqual([what for _, what in quotes.missing_paths(lines, there)], ["core/none does not exist"])


class the_performance_page(unittest.TestCase):
    def row(self, case, ratio=None, ratio_min=None, floor=None, floor_min=None, met="judge"):
        row = {"case": case, "ours_s": 2.0, "ours_min_s": 1.0, "ours_max_s": 4.0, "bytes": 0, "repetitions": 3,
               "peer": "them" if ratio else None, "peer_s": ratio and 2 * ratio, "ratio": ratio,
               "floor_s": None, "floor_fraction": floor, "commit": "abc", "machine": "m", "date": "2026-01-31"}
        goals = [("ratio_min", ratio_min, f">= {ratio_min}x them"), ("floor_min", floor_min, f">= {floor_min} of it")]
        goals = [goal for goal in goals if goal[1] is not None]
        if goals:
            row["goals"] = {kind: limit for kind, limit, _ in goals}
            row["goal"] = "; ".join(text for _, _, text in goals)
            verdict = performance.verdict_of(performance.goals_of(row))
            row["met"] = {"met": True, "missed": False, "not measured": None}[verdict] if met == "judge" else met
        return row

    def page_of(self, *rows):
        return performance.page([performance.Run("store", list(rows))])

    def test_has_every_row_and_the_missed_ones_first(self):
        page = self.page_of(self.row("load/good", 3, 2), self.row("load/plain", 5), self.row("store/bad", 1, 2))
        for case in ("load/good", "load/plain", "store/bad"):
            self.assertIn(f"`{case}`", page)
        self.assertLess(page.index("`store/bad`"), page.index("`load/good`"))
        self.assertIn("**missed**", page)

    def test_counts_a_missed_goal_beside_one_that_was_not_measured(self):
        row = self.row("store/both", None, 2, 0.5, 0.9)
        self.assertEqual(performance.verdict_of(performance.goals_of(row)), "missed")

    def test_refuses_a_row_whose_benchmark_says_otherwise(self):
        with self.assertRaisesRegex(ValueError, "load/lie: missed by its figures, met by its benchmark"):
            performance.check_row(self.row("load/lie", 1, 2, met=True))

    def test_draws_a_bar_for_every_row_that_has_a_figure(self):
        drawn = performance.chart("t", [self.row("a/b", 3, 2), self.row("a/c", 0.5, 2), self.row("a/d")])
        self.assertEqual([drawn.count(f'<rect class="{look}"') for look in ("met", "missed", "none")], [1, 1, 0])
        self.assertIsNone(performance.chart("t", [self.row("a/d")]))

    def test_fills_the_readme_between_its_markers_only(self):
        readme = f"before\n{performance.BEGIN}\nold\n{performance.END}\nafter\n"
        self.assertEqual(performance.with_table(readme, "new"), readme.replace("old", "new"))


class Outcomes(unittest.TestCase):
    """What scripts/test counts of a JUnit file that CTest wrote."""

    CASES = [
        ("boost", "run", "tests: 3 passed, 0 failed, 2 skipped"),
        ("whole", "run", "skipped: this machine has no device"),
        ("plain", "run", "all is well"),
        ("broken", "fail", "a.cpp(7): error: in &quot;s/c&quot;: x &lt; 1\ntests: 4 passed, 1 failed, 1 skipped"),
        ("absent", "notrun", ""),
        ("disabled", "disabled", ""),
    ]

    def counted(self, cases):
        path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "test")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        function = text[text.index("outcomes() {"):text.index("# run_tests LABEL")]
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as junit:
            for name, status, said in cases:
                junit.write(
                    f'\t<testcase name="{name}" classname="{name}" time="0.1" status="{status}">\n'
                    f"\t\t<system-out>{said}\n</system-out>\n\t</testcase>\n")
            junit.flush()
            done = subprocess.run(
                ["bash", "-c", f'{function}\noutcomes "$1"', "bash", junit.name], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def test_counts_the_cases_of_each_program(self):
        self.assertEqual(self.counted(self.CASES[:1]), ["passed 3", "skipped 2"])

    def test_a_program_that_skips_has_not_passed(self):
        lines = self.counted(self.CASES[1:3])
        self.assertEqual(lines, ["skipped 0 whole: this machine has no device", "skipped 1", "passed 1"])

    def test_a_failure_comes_with_its_first_errors(self):
        self.assertEqual(
            self.counted(self.CASES[3:4]),
            ["passed 4", "skipped 1", "failed 1 broken", 'failed 0 broken: a.cpp(7): error: in "s/c": x < 1'])

    def test_what_did_not_run_has_failed_or_was_disabled(self):
        self.assertEqual(self.counted(self.CASES[4:]), ["failed 1 absent: ", "skipped 1 disabled: disabled"])


if __name__ == "__main__":
    sys.stdout = sys.stderr
    unittest.main()
