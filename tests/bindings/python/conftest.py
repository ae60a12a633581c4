"""A node with models and a pool for checkpoints in this process, for all tests of a file."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import millrace as mr

CONFIGURATION = """
node: {{ name: n0, listen: 'unix:{0}/n0.sock' }}
staging: {{ size: 16MiB }}
data: {{ capacity: 64MiB, region_size: 1MiB }}
providers:
  - {{ name: fast, capacity: 1GiB }}
  - {{ name: pool, group: pool, bucket: pmem, capacity: 1GiB, path: '{0}/pool' }}
"""


def configuration(directory: pathlib.Path) -> pathlib.Path:
    path = directory / "node.yaml"
    path.write_text(CONFIGURATION.format(directory))
    return path


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    with mr.embed(configuration(tmp_path_factory.mktemp("node"))) as started:
        yield started


# By its socket, as most programs do.
@pytest.fixture(scope="session")
def client(node):
    with mr.connect(node.address) as connected:
        yield connected


@pytest.fixture
def repo(client):
    return client.repository("default")


@pytest.fixture
def name(request):
    return request.node.name[:200]


@pytest.fixture
def run_python(node):
    """Runs a program in Python, which finds the node at MILLRACE_ADDRESS; returns it when it has ended."""

    def run(source: str, *, status: int = 0, timeout: float = 120) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "MILLRACE_ADDRESS": node.address},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    return run


def fail_a_save(ck):
    """Saves until one is refused by the service, which tells it later; returns the number of steps.

    Each is begun while another one is pulled. One that is refused at once has not begun.
    """
    for step in range(0, 400, 2):
        refused = None
        try:
            first = ck.save(step)
            second = ck.save(step + 1)
        except mr.Busy:
            second = None
        first.durable.exception(60)
        if second is not None:
            refused = second.durable.exception(60)
        if refused is not None:
            assert isinstance(refused, mr.Busy)
            return step + 2
    raise AssertionError("no save was refused later")


# A line for each test, where a file is asked for.
def pytest_runtest_logreport(report):
    path = os.environ.get("MILLRACE_TEST_JSON")
    if path is None or (report.when != "call" and report.passed):
        return
    why = str(report.longrepr[2]) if report.skipped else str(report.longrepr or "")[-400:]
    line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
    with open(path, "a") as file:
        file.write(json.dumps({**line, **({"why": why} if why else {})}) + "\n")


# A file that is skipped whole, or cannot be read.
def pytest_collectreport(report):
    if not report.passed and report.nodeid.endswith(".py"):
        report.when, report.duration = "call", 0.0
        pytest_runtest_logreport(report)


# The line that scripts/test adds up, and what was skipped.
def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    count = {kind: len(stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    for report in stats.get("skipped", []):
        where = report.nodeid.split("::")[-1]
        print(f"skipped: {where}: {str(report.longrepr[2]).removeprefix('Skipped: ')}")
    print(
        f"tests: {count['passed']} passed, {count['failed'] + count['error']} failed, "
        f"{count['skipped']} skipped"
    )
