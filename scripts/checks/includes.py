"""Checks that includes between rooms point downwards. Called by scripts/lint with the files to check.

The rooms, who may include whom, and which folders may see a library's headers stand in two tables.
"""
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
}

# A header that matches may be included only below these folders.
LIBRARIES = [
    (r"caf/", ["actors", "runtime", "tests/actors", "tests/runtime", "tests/support"]),
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
]

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
        if not os.path.exists(target):
            yield f"<{header}> does not exist"
        if room in ROOMS and target.split("/")[0] not in ROOMS[room]:
            yield f"{room} may not include <{header}>; it knows {', '.join(sorted(ROOMS[room]))}"
        return
    for pattern, folders in LIBRARIES:
        if re.match(pattern, header) and not below(path, folders):
            yield f"<{header}> belongs in {', '.join(folders)} only"


def main(paths):
    bad = 0
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                found = INCLUDE.match(line)
                for fault in faults_of(path, *found.groups()) if found else ():
                    print(f"{path}:{number}: {fault}")
                    bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
