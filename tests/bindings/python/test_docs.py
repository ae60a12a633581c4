"""The code of docs/python.md runs, in the order of the page."""

import pathlib
import re

import pytest


def test_the_tutorial_runs(run_python):
    pytest.importorskip("torch")
    page = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    done = run_python("\n".join(blocks))
    assert "not_found" in done.stdout and "over" in done.stdout
