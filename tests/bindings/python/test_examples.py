"""The examples in Python run; the trainer goes on after it was ended."""

import os
import pathlib
import re
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


def run(node, name, *arguments, status=0):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "MILLRACE_ADDRESS": node.address},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == status, done.stdout + done.stderr
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


@pytest.mark.parametrize("small", [True, False])
def test_transfer_learning(node, small):
    pytest.importorskip("torch")
    if not small:
        pytest.importorskip("torchvision")
    said = run(node, "transfer_learning.py", "--steps", "3", *(["--small"] if small else []))
    head = "backbone.5" if small else "backbone.fc"
    assert f"its own: {head}.weight, {head}.bias" in said
    stored, taken = (int(n) for n in re.findall(r"(\d+) bytes", said))
    assert 0 < taken < stored


def test_train_digits(node, tmp_path):
    pytest.importorskip("torch")

    def train(name, *more, status=0):
        folder = ["--folder", str(tmp_path)]
        return run(node, "train_digits.py", "--name", name, *folder, *more, status=status)

    whole = train("digits/whole", "--epochs", "4")
    killed = train("digits/killed", "--epochs", "4", "--kill-at", "40", status=-9)
    resumed = train("digits/killed", "--epochs", "4")
    assert "goes on after step 40" in resumed
    assert losses(killed) + losses(resumed) == losses(whole)
    assert int(re.search(r"(\d+)% right", resumed).group(1)) > 85, resumed


def test_surrogate(node):
    pytest.importorskip("torch")
    said = run(node, "surrogate.py", "--members", "2", "--steps", "60")
    arrived, batches = (int(n) for n in re.search(r"(\d+) of 120 fields seen, (\d+)", said).groups())
    assert arrived > 10 and batches > 20, said
    first, last = (float(n) for n in re.findall(r"([\d.e+-]+) at (?:first|last)", said))
    assert last < first / 2, said


def test_read_stream(node):
    assert "60 of 60 fields, mean 1.0000" in run(node, "read_stream.py", "--steps", "30")


def test_stream_images(node):
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    said = run(node, "stream_images.py")
    assert "goes on after 176 samples of epoch 1" in said, said
    assert said.count("each sample once: True") == 3, said
    assert int(re.findall(r"(\d+)% right", said)[-1]) > 50, said
    size = int(re.search(r"(\d+) bytes of samples", said).group(1))
    assert size > 4 * 2**20, said


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


def test_follow_weights(node):
    said = run(node, "follow_weights.py", "--name", "followed", "--epochs", "20")
    assert "is killed after version" in said
    lines = [line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("evaluator ")]
    assert len(lines) == 4 and len(set(lines)) == 1 and lines[0].startswith("version 20:")
