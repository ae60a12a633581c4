"""Checks what documents say of files: quoted code, links, and paths. Called by scripts/lint with the documents.

A fenced block below a comment that names a file of the tree is a quotation:

    <!-- examples/quickstart.cpp -->
    ```cpp
    ...
    ```

Its lines must stand in that file, one after the other; only indentation may differ. A line `...`, with or without a
comment sign before it, stands for any lines left out. Every block of C++ or CMake must be a quotation.

The target of a relative link must exist. With --paths, so must every path of the tree in backticks, as `core/ids.hpp`
or, without its ending, `core/ids`.
"""
import os
import re
import sys

FENCE = re.compile(r"^\s*```(\w*)\s*$")
SOURCE = re.compile(r"^\s*<!-- ([\w./-]+\.\w+) -->\s*$")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:actors|bench|bindings|cmake|config|core|docs|examples|net|packaging|runtime|scripts|storage"
                  r"|tests|tools|transport)/[\w./-]*)`")
QUOTED = {"cpp": "C++", "cmake": "CMake"}
# An argument of CMake that stands for itself may hold a line of C++.
BRACKETS = re.compile(r"^\[\[(.*)\]\]\)?$")
LEFT_OUT = re.compile(r"^(//|#|--)?\s*\.\.\.$")


def blocks_of(lines):
    """Yields (line number, language, named file or None, lines) of every fenced block."""
    source, start, language, block = None, None, None, []
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if start is not None:
            if fence:
                yield start, language, source, block
                source, start = None, None
            else:
                block.append(line)
        elif fence:
            start, language, block = number, fence.group(1), []
        elif line.strip():
            named = SOURCE.match(line)
            source = named.group(1) if named else None


def parts_of(block):
    """The quoted lines, stripped, in runs between the lines that stand for something left out."""
    parts = [[]]
    for line in (line.strip() for line in block):
        if LEFT_OUT.match(line):
            parts.append([])
        else:
            parts[-1].append(line)
    return [part for part in parts if part]


def first_missing(block, text):
    """The first line of the first run that the text does not have where it should, or None."""
    lines = [BRACKETS.sub(r"\1", line.strip()) for line in text.split("\n")]
    at = 0
    for part in parts_of(block):
        starts = [i for i in range(at, len(lines) - len(part) + 1) if lines[i:i + len(part)] == part]
        if not starts:
            return part[0]
        at = starts[0] + len(part)
    return None


def faults_of(lines, read):
    """Yields (line number, what is wrong). `read` gives a file's text, or None."""
    for number, language, source, block in blocks_of(lines):
        if source is None:
            if language in QUOTED:
                yield number, f"this {QUOTED[language]} names no file: put <!-- PATH --> above it"
            continue
        text = read(source)
        if text is None:
            yield number, f"{source} does not exist"
            continue
        missing = first_missing(block, text)
        if missing is not None:
            yield number, f"{source} does not have this: {missing}"


def outside_blocks(lines):
    """Yields (line number, line) of what is not fenced."""
    inside = False
    for number, line in enumerate(lines, 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, line


def broken_links(folder, lines, exists):
    """Yields (line number, what is wrong) of relative links in a document of `folder`."""
    for number, line in outside_blocks(lines):
        for target in LINK.findall(line):
            if "://" not in target and not exists(os.path.normpath(os.path.join(folder, target))):
                yield number, f"the link to {target} leads nowhere"


def missing_paths(lines, exists):
    """Yields (line number, what is wrong) of paths of the tree in backticks."""
    for number, line in outside_blocks(lines):
        for path in PATH.findall(line):
            if "NAME" not in path and not any(exists(path + ending) for ending in ("", ".hpp", ".cpp")):
                yield number, f"{path} does not exist"


def read(path):
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def main(arguments):
    bad = 0
    for document in (a for a in arguments if a != "--paths"):
        lines = read(document).split("\n")
        faults = list(faults_of(lines, read))
        faults += broken_links(os.path.dirname(document), lines, os.path.exists)
        if "--paths" in arguments:
            faults += missing_paths(lines, os.path.exists)
        for number, fault in sorted(faults):
            print(f"{document}:{number}: {fault}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
