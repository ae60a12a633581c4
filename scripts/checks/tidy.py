"""Runs clang-tidy on what changed. Called by scripts/lint: tidy.py BUILD_DIR JOBS [--tests].

BUILD_DIR is configured with MILLRACE_UNITY: clang-tidy spends most of its time on the headers that a source includes,
so up to ten sources of a folder share one visit. Precompiled headers are left out, so every unit must include what it
uses.

A unit that passed is remembered by the hash of all that its verdict depends on: the checks, the tool, the compiler
command, the unit and the files of this tree that it includes, by content and by their path within the tree. The
verdicts lie in $XDG_CACHE_HOME/millrace/tidy (~/.cache/millrace/tidy), so that another clone finds them, too.

Without --tests the sources below tests/ are left out: they are two thirds of all units.

There is no path-sensitive analysis (clang-analyzer-*): it would take longer than all other checks together, and the
sanitizers run the same code.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys

TOOL = "clang-tidy-14"
ROOMS = "core|config|net|transport|storage|actors|runtime|bindings|tools|examples|bench"
# A header that GCC has precompiled is nothing to clang; the sources include what they need.
PRECOMPILED = re.compile(r" -Winvalid-pch -include \S+/cmake_pch\.hxx\b")
LAUNCHER = re.compile(r"^\S*cmake -E env \S+ \S*ccache ")
INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def first_party(path, root, seen):
    """Adds `path` and, transitively, the files of this tree that it includes to `seen`."""
    if path in seen:
        return
    seen[path] = read(path)
    for header in INCLUDE.findall(seen[path]):
        header = header.decode()
        inside = header.removeprefix("millrace/")
        if inside == header:
            inside = os.path.relpath(os.path.join(os.path.dirname(path), header), root)
        if not inside.startswith("..") and os.path.isfile(inside):
            first_party(inside, root, seen)


def configurations_of(path):
    folder = os.path.dirname(path)
    while True:
        candidate = os.path.join(folder, ".clang-tidy")
        if os.path.exists(candidate):
            yield candidate
        if not folder:
            return
        folder = os.path.dirname(folder)


def key_of(path, command, version, root):
    """Of one unit. Neither the clone's place nor that of its build counts."""
    seen = {}
    first_party(path, root, seen)
    digest = hashlib.sha256(version + command.replace(root, "").encode())
    for configuration in configurations_of(path):
        digest.update(read(configuration))
    for name in sorted(seen):
        digest.update(name.encode() + b"\0" + hashlib.sha256(seen[name].replace(root.encode(), b"")).digest())
    return digest.hexdigest()


def tidy(path, database, root):
    run = subprocess.run(
        [TOOL, "--quiet", "-p", database, "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Qunused-arguments",
         f"--header-filter=^{re.escape(root)}/({ROOMS})/|/include/millrace/({ROOMS})/", path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The counts of suppressed warnings say nothing.
    noise = re.compile(r"^\d+ warnings?( and \d+ errors?)? generated\.$|^Suppressed |^Use -header")
    said = [line for line in run.stderr.splitlines() if not noise.match(line)]
    return run.returncode, run.stdout + ("\n".join(said) if run.returncode else "")


def wanted(build_dir, root, with_tests):
    """The translation units of this tree in the compilation database, with their entries."""
    build = os.path.abspath(build_dir)
    with open(os.path.join(build_dir, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            path = os.path.join(entry["directory"], entry["file"])
            if path.endswith("/cmake_pch.hxx.cxx") or not path.startswith(root + os.sep):
                continue
            if path.startswith(build) and "/Unity/" not in path:
                continue
            if not with_tests and path.startswith(os.path.join(root, "tests") + os.sep):
                continue
            entry["command"] = LAUNCHER.sub("", PRECOMPILED.sub("", entry["command"]))
            yield os.path.relpath(path, root), entry


def main(build_dir, jobs, with_tests):
    root = os.getcwd()
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "millrace", "tidy")
    os.makedirs(cache, exist_ok=True)
    database = os.path.join(build_dir, "tidy")
    os.makedirs(database, exist_ok=True)
    version = subprocess.run([TOOL, "--version"], stdout=subprocess.PIPE, check=True).stdout
    units = dict(wanted(build_dir, root, with_tests))
    with open(os.path.join(database, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(list(units.values()), file)
    keys = {path: key_of(path, entry["command"], version, root) for path, entry in units.items()}
    stale = [path for path in units if not os.path.exists(os.path.join(cache, keys[path]))]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # Reports of a header repeat in every unit that includes it; say each once.
        said = set()
        for path, (code, text) in zip(stale, pool.map(lambda p: tidy(p, database, root), stale)):
            if code == 0:
                open(os.path.join(cache, keys[path]), "w").close()
                continue
            bad += 1
            if text not in said:
                said.add(text)
                print(text, flush=True)
    print(f"{len(units)} units, {len(stale)} of them new or changed, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), "--tests" in sys.argv[3:]))
