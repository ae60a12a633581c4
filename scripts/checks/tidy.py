"""Runs clang-tidy on what changed. Called by scripts/lint: tidy.py BUILD_DIR JOBS.

A file that passed is remembered under BUILD_DIR/../lint by the hash of everything its verdict depends on:
the checks, the tool, the compiler command, the file and the headers of this tree that it includes.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys

TOOL = "clang-tidy-14"
# A header that GCC has precompiled is nothing to clang; the sources include what they need.
PRECOMPILED = re.compile(r" -Winvalid-pch -include \S+/cmake_pch\.hxx\b")
INCLUDE = re.compile(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def first_party(path, seen):
    """Adds `path` and, transitively, the headers of this tree that it includes to `seen`."""
    if path in seen:
        return
    seen[path] = read(path)
    for header in INCLUDE.findall(seen[path]):
        header = header.decode()
        inside = header[len("millrace/"):] if header.startswith("millrace/") else \
            os.path.normpath(os.path.join(os.path.dirname(path), header))
        if os.path.isfile(inside):
            first_party(inside, seen)


def configurations_of(path):
    folder = os.path.dirname(path)
    while True:
        candidate = os.path.join(folder, ".clang-tidy")
        if os.path.exists(candidate):
            yield candidate
        if not folder:
            return
        folder = os.path.dirname(folder)


def key_of(path, command, version):
    seen = {}
    first_party(path, seen)
    digest = hashlib.sha256(version + command.encode())
    for configuration in configurations_of(path):
        digest.update(read(configuration))
    for name in sorted(seen):
        digest.update(name.encode() + b"\0" + hashlib.sha256(seen[name]).digest())
    return digest.hexdigest()


def tidy(path, database):
    run = subprocess.run(
        [TOOL, "--quiet", "-p", database, "--extra-arg=-Wno-unknown-warning-option", path],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # The counts of suppressed warnings say nothing.
    noise = re.compile(r"^\d+ warnings?( and \d+ errors?)? generated\.$|^Suppressed |^Use -header")
    said = [line for line in run.stderr.splitlines() if not noise.match(line)]
    return run.returncode, run.stdout + ("\n".join(said) if run.returncode else "")


def wanted(build_dir):
    """The translation units of this tree in the compilation database, with their entries."""
    root = os.getcwd() + os.sep
    build = os.path.abspath(build_dir)
    with open(os.path.join(build_dir, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            entry["command"] = PRECOMPILED.sub("", entry["command"])
            path = os.path.join(entry["directory"], entry["file"])
            if path.startswith(root) and not path.startswith(build):
                yield path[len(root):], entry


def main(build_dir, jobs):
    cache = os.path.join(build_dir, "..", "lint")
    os.makedirs(cache, exist_ok=True)
    version = subprocess.run([TOOL, "--version"], stdout=subprocess.PIPE, check=True).stdout
    units = dict(wanted(build_dir))
    with open(os.path.join(cache, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(list(units.values()), file)
    keys = {path: key_of(path, entry["command"], version) for path, entry in units.items()}
    stale = [path for path in units if not os.path.exists(os.path.join(cache, keys[path]))]
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # Reports of a header repeat in every unit that includes it; say each once.
        said = set()
        for path, (code, text) in zip(stale, pool.map(lambda p: tidy(p, cache), stale)):
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
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
