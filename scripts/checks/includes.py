"""Checks that includes between rooms point downwards, that kinds are named by their folders alone, and that the public
headers show nothing of what they hide.

Called by scripts/lint with the files to check. The rooms, who may include whom, and which folders may see a library's
headers stand in two tables. A kind of driver or bucket is a folder with KIND_driver.hpp or KIND_bucket.hpp.
"""
import glob
import os
import re
import sys

ROOMS = {
    "core": {"core"},
    "config": {"core", "config"},
    "net": {"core", "config", "net"},
    "transport": {"core", "config", "net", "transport"},
    "storage": {"core", "config", "storage"},
    "actors": {"core", "config", "net", "transport", "storage", "actors"},
    "runtime": {"core", "config", "net", "transport", "storage", "actors", "runtime"},
    "bindings": {"core", "config", "runtime", "bindings"},
}

# A header that matches may be included only below these folders.
LIBRARIES = [
    (r"caf/", ["actors", "runtime", "tests/actors", "tests/runtime", "tests/sim", "tests/support", "bench/staging"]),
    (r"rocksdb/", ["storage/rocksdb", "tests", "bench"]),
    (r"yaml-cpp/", ["config", "tests/config"]),
    (r"libpmem", ["storage/pmem", "tests"]),
    (r"(infiniband|rdma)/", ["transport/verbs", "tests", "bench"]),
    (r"openssl/", ["net/tls", "transport/tcp", "tests", "bench"]),
    (r"cuda", ["transport/cuda", "tests", "bench"]),
    (r"boost/test/", ["tests"]),
    (r"Eigen/", ["examples", "bench"]),
    (r"hiredis/", ["bench"]),
    (r"(hdf5|H5public|zip)\.h", ["storage/archive", "tests"]),
    (r"(png|turbojpeg)\.h$", ["storage/samples", "bench/loader", "tests"]),
    (r"archive(_entry)?\.h$", ["storage/samples", "tests"]),
    (r"nlohmann/", ["config", "runtime/client", "storage/archive", "storage/flush", "tools", "tests", "bench", "examples"]),
    (r"CLI/", ["tools", "examples", "bench"]),
    (r"xxhash", ["core", "transport/copy", "tests"]),
    (r"isa-l/", ["storage/rocksdb", "transport/tcp"]),
    (r"sodium\.h", ["core", "net", "transport/tcp"]),
    (r"hwloc", ["transport/memory", "tests"]),
]

# Beside its folder and the room's builtin.cpp a kind is named by what is about that kind: its tests and benchmarks, the
# commands for pools, what `millrace doctor` knows of RDMA devices, and examples with a configuration.
KINDS_NAMED_IN = [
    "tests/", "bench/", "examples/", "tools/doctor", "tools/pool_command.cpp", "tools/checkpoints/pool_access.cpp",
]
# These names are words of other things, too: as texts and namespaces they mean nothing.
COMMON_WORDS = {"local", "memory", "staged"}

# The headers that programs include. `cmake --install` copies them, and all of Millrace that they include; the same list
# stands in cmake/install_headers.cmake.
PUBLIC = ["runtime/client/*.hpp", "runtime/configuration.hpp", "runtime/node/node.hpp"]
# What a public header may be made of: these rooms, the standard library, and these headers.
PUBLIC_ROOMS = {"core", "config", "runtime"}
PUBLIC_LIBRARIES = {"fmt/core.h", "tl/expected.hpp"}
HIDDEN_NAMES = re.compile(r"\b(actors|bindings|net|storage|transport|caf|rocksdb|YAML|spdlog)::|\b(ibv_|PMEM)\w+")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def below(path, folders):
    return any(path.startswith(folder + "/") for folder in folders)


def faults_of(path, style, header):
    """Yields what is wrong with one include of the file `path`."""
    if style == '"':
        if ".." in header.split("/"):
            yield f'"{header}" climbs out of its folder; write <millrace/ROOM/...>'
        return
    if header.startswith("millrace/"):
        target = header[len("millrace/"):]
        room = path.split("/")[0]
        if "/" not in target:
            return  # generated, as version.hpp
        # Toys stand beside the tree as they would in it.
        is_toy = path.startswith("tests/toys/") and os.path.exists("tests/toys/" + target)
        if not os.path.exists(target) and not is_toy:
            yield f"<{header}> does not exist"
        if room in ROOMS and target.split("/")[0] not in ROOMS[room]:
            yield f"{room} may not include <{header}>; it knows {', '.join(sorted(ROOMS[room]))}"
        return
    for pattern, folders in LIBRARIES:
        if re.match(pattern, header) and not below(path, folders):
            yield f"<{header}> belongs in {', '.join(folders)} only"


def kinds():
    """The folders of kinds: ("transport", "tcp"), …"""
    found = glob.glob("transport/*/*_driver.hpp") + glob.glob("storage/*/*_bucket.hpp")
    for room, kind, header in sorted(path.split(os.sep) for path in found):
        if header.startswith(kind + "_"):
            yield room, kind


def names_of_kinds(path, of_rooms):
    """What in a line of `path` would name a kind: (expression, kind)."""
    for room, kind in of_rooms:
        if path.startswith((f"{room}/{kind}/", f"{room}/builtin.cpp", *KINDS_NAMED_IN)):
            continue
        text = rf"|`{kind}\.\w"
        if kind not in COMMON_WORDS:
            text += rf'|"{kind}"|\b{kind}::'
        yield re.compile(rf"<millrace/{room}/{kind}/|\b{kind}_(options|driver|bucket|bucket_options)\b{text}"), kind


def installed_headers(roots, read):
    """The public headers `roots` and all of Millrace that they include. `read` gives the lines of a file, or None."""
    found, waiting = set(), list(roots)
    while waiting:
        header = waiting.pop()
        lines = None if header in found else read(header)
        if lines is None:
            continue  # one that is generated, as version.hpp, or does not exist
        found.add(header)
        included = (match[2] for match in map(INCLUDE.match, lines) if match)
        waiting += [name[len("millrace/"):] for name in included if name.startswith("millrace/")]
    return found


def faults_of_public(line):
    """Yields what a line of a public header shows that it should hide."""
    if included := INCLUDE.match(line):
        header = included[2]
        room = header.split("/")[1] if header.startswith("millrace/") else None
        if room is None:
            hidden = ("." in header or "/" in header) and header not in PUBLIC_LIBRARIES
        else:
            hidden = header.count("/") > 1 and room not in PUBLIC_ROOMS
        if hidden:
            may = ", ".join(sorted(PUBLIC_ROOMS | PUBLIC_LIBRARIES))
            yield f"a public header may not include <{header}>, but the standard library and {may}"
    elif hidden := HIDDEN_NAMES.search(line.split("//")[0]):
        yield f"a public header may not name {hidden[0]}; the types of the interface stand in core"


def lines_of(path):
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readlines()


def main(paths):
    bad = 0
    public = installed_headers([path for pattern in PUBLIC for path in glob.glob(pattern)], lines_of)
    all_kinds = list(kinds())
    for path in paths:
        named = list(names_of_kinds(path, all_kinds))
        for number, line in enumerate(lines_of(path) or [], 1):
            found = INCLUDE.match(line)
            faults = list(faults_of(path, *found.groups())) if found else []
            faults += [
                f"names the kind {kind}; only its folder and builtin.cpp do (if it means something else, another "
                "name is better for the kind, or COMMON_WORDS in scripts/checks/includes.py has it)"
                for pattern, kind in named if pattern.search(line)]
            if path in public:
                faults += faults_of_public(line)
            for fault in faults:
                print(f"{path}:{number}: {fault}")
                bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
