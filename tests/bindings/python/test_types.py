"""Types: mypy --strict finds nothing in the package, nor in a program that uses it."""

import pathlib
import shutil
import subprocess

import pytest

import millrace

PROGRAM = """
import millrace as mr

client = mr.connect()
repo = client.repository("default")
receipt: mr.Receipt = repo.store("m", {"a": b"bytes"}).result()
names: list[str] = repo.safe_open("m").keys()
loader = mr.data.Loader(client.working_set("d").preload("a.npy"), 4, shuffle=False)
positions: list[int] = [batch.position for batch in loader]
reader = client.working_set("d").open().result()
damage: mr.data.SetDamage = reader.verify(lambda done, total: print(done, total)).result()
order = reader.order(7, 1, shuffle=False)
first: int = order[0]
some: list[int] = order[2:5]
by: list[str | None] = [part.by for part in client.working_set("d").access().result().parts]


async def use() -> mr.ModelInfo:
    return await repo.describe("m")
"""


def test_mypy(tmp_path):
    mypy = shutil.which("mypy")
    if not mypy:
        pytest.skip("mypy is not installed")
    package = pathlib.Path(millrace.__file__).parent
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [
            mypy, "--strict", "--ignore-missing-imports", "--follow-imports=silent",
            "--cache-dir", str(tmp_path), str(package), str(program),
        ],
        capture_output=True,
        text=True,
        cwd=package.parent,
        env={"PATH": "/usr/bin:/bin", "MYPYPATH": str(package.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
