"""The code of docs/python.md and of README.md runs, in the order of the pages."""

import pathlib
import re

import pytest


def blocks_of(page):
    text = (pathlib.Path(__file__).parents[3] / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(run_python):
    pytest.importorskip("torch")
    blocks = blocks_of("docs/python.md")
    assert len(blocks) >= 6
    done = run_python("\n".join(blocks))
    assert "not_found" in done.stdout and "over" in done.stdout


def test_the_first_page_runs(run_python):
    pytest.importorskip("torch")
    (block,) = blocks_of("README.md")
    before = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
steps = 3
"""
    block = block.replace('"run7"', '"first/page"')  # the tutorial has that one
    done = run_python(before + block + "\nprint(saved := ckpt.save(step + 2).durable.result().step)\n")
    assert done.stdout == "4\n"
