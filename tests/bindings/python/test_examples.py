"""The examples in Python run; the trainer goes on after it was ended."""

import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "python"


# torchrun; that of PyTorch 1.13 does not find the zero of an enumeration under Python 3.11.
TORCHRUN = """
from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.run import main

if Std.from_str("0") is None:
    Std.from_str = staticmethod(lambda text: Std(int(text)))
main()
"""


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


def test_ddp_elastic(node):
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")

    def train(*arguments):
        done = subprocess.run(
            [
                sys.executable, "-c", TORCHRUN, "--nproc_per_node", "2",
                "--max_restarts", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
                EXAMPLES / "ddp_elastic.py", *arguments,
            ],
            env={**os.environ, "MILLRACE_ADDRESS": node.address, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    undisturbed = train("--name", "ddp/whole")
    killed = train("--name", "ddp/killed", "--kill-at", "7")
    assert "goes on after step" in killed, killed
    expected = dict(line.split(": ") for line in losses(undisturbed))
    assert len(expected) == 12
    for line in losses(killed):
        step, loss = line.split(": ")
        assert expected[step] == loss, (step, killed, undisturbed)
    assert losses(killed)[-1].startswith("step 12: ")
