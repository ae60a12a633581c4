"""The examples in Python run; the trainer goes on after it was ended."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "python"


def run(node, name, *arguments):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "MILLRACE_ADDRESS": node.address},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(output):
    return [line for line in output.splitlines() if line.startswith("step ")]


def test_arrays(node):
    assert "the same field" in run(node, "arrays.py")


@pytest.mark.parametrize("small", [True, False])
def test_train_resnet(node, small):
    pytest.importorskip("torch")
    if not small:
        pytest.importorskip("torchvision")
    more = ["--small"] if small else []
    whole = run(node, "train_resnet.py", "--name", f"whole{small}", "--steps", "4", *more)
    first = run(node, "train_resnet.py", "--name", f"parts{small}", "--steps", "2", *more)
    second = run(node, "train_resnet.py", "--name", f"parts{small}", "--steps", "4", *more)
    assert "begins anew" in first and "goes on after step 2" in second
    assert losses(first) + losses(second) == losses(whole)
