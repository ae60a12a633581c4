"""Checks the size of functions and files, and the width of comments. Called by scripts/lint with the files to check.

A function has at most 70 lines, a file 700. What was larger when it came stands in sizes.txt with its
number of lines ("NUMBER path" or "NUMBER path:function"); that number may only shrink.
"""
import os
import re
import sys

COMMENT_COLUMNS_MAX = 100  # the formatter leaves comments as they are
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
RATCHET = os.path.join(os.path.dirname(__file__), "sizes.txt")

BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/'                       # comments
    r'|R"(?P<mark>[^ ()\\\t\n]*)\(.*?\)(?P=mark)"'  # raw strings
    r'|"(?:\\.|[^"\\\n])*"'                     # strings
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"     # characters, but no digit separators
    r'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*'           # preprocessor
    r'|^BOOST_\w*TEST_SUITE\w*\([^\n]*',         # macros that stand like statements
    re.DOTALL | re.MULTILINE)

TYPE_OR_NAMESPACE = re.compile(
    r'^(?:inline |export |typedef )*(?:namespace|class|struct|union|enum|extern)\b')
TEMPLATE = re.compile(r'^template\s*<')
MEMBER_INITIALISER = re.compile(r'\)[^:]*[^:]:[^:].*[\w>]\s*$|\)\s*:\s*[\w:<>]+\s*$', re.DOTALL)


def blank(source):
    """The source without comments, literals and directives; every line keeps its number."""
    return BLANKED.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def without_template(header):
    while TEMPLATE.match(header):
        depth = 0
        for i, c in enumerate(header):
            depth += (c == "<") - (c == ">")
            if c == ">" and depth == 0:
                header = header[i + 1:].lstrip()
                break
        else:
            return header
    return header


def name_of(header):
    """The name before the first parameter list: `a::b`, or the argument of a test macro."""
    test = re.match(r'BOOST_\w*TEST_CASE\w*\s*\(\s*(\w+)', header)
    if test:
        return test.group(1)
    names = re.findall(r'([~\w:]+)\s*\(', header)
    names = [n for n in names if n not in ("decltype", "noexcept", "requires", "alignas")]
    return names[0] if names else "operator"


def functions_of(source):
    """Yields (name, first line, lines) of every function outside other functions."""
    code = blank(source)
    scopes = []         # one entry per open brace: "scope", "function", "nested"
    header_at = 0       # where the declaration under way begins
    parens = 0
    for i, c in enumerate(code):
        if c in "()":
            parens += 1 if c == "(" else -1
        elif c == "{":
            header = code[header_at:i]
            kind = kind_of(header, scopes, parens)
            begin = header_at + len(header) - len(header.lstrip())
            scopes.append((kind, begin, parens))
            if kind == "scope":
                header_at = i + 1
                parens = 0
        elif c == "}" and scopes:
            kind, begin, parens = scopes.pop()
            if kind == "function":
                first = code.count("\n", 0, begin) + 1
                last = code.count("\n", 0, i) + 1
                header = without_template(" ".join(code[begin:i].split("{")[0].split()))
                yield name_of(header), first, last - first + 1
            if kind in ("scope", "function"):
                header_at = i + 1
        elif c == ";" and parens == 0 and (not scopes or scopes[-1][0] == "scope"):
            header_at = i + 1


def kind_of(header, scopes, parens):
    if scopes and scopes[-1][0] != "scope":
        return "nested"
    text = without_template(" ".join(header.split()))
    text = re.sub(r'^(?:public|private|protected) ?: ?', "", text)
    if parens > 0:
        return "nested"
    if TYPE_OR_NAMESPACE.match(text):
        return "scope"
    if "(" not in text or MEMBER_INITIALISER.search(text):
        return "nested"
    return "function"


def read_ratchet():
    allowed = {}
    with open(RATCHET, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                number, what = line.split()
                allowed[what] = int(number)
    return allowed


def judge(what, place, lines, bound, allowed, seen):
    """Prints and counts a fault when `what` is too large or its noted number is out of date."""
    if what in allowed:
        seen.add(what)
        if lines == allowed[what] and lines > bound:
            return 0
        if lines <= bound:
            print(f"{place}: {what} has {lines} lines now: remove it from {RATCHET}")
        elif lines < allowed[what]:
            print(f"{place}: {what} has {lines} lines now: lower its number in {RATCHET}")
        else:
            print(f"{place}: {what} grew from {allowed[what]} to {lines} lines; it may only shrink")
        return 1
    if lines > bound:
        print(f"{place}: {what} has {lines} lines, more than {bound}: split it")
        return 1
    return 0


def wide_comments(path, source):
    """Prints the lines of comments that are too wide; returns their number."""
    bad = 0
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("//") and len(line) > COMMENT_COLUMNS_MAX:
            print(f"{path}:{number}: the comment has {len(line)} columns, more than {COMMENT_COLUMNS_MAX}: wrap it")
            bad += 1
    return bad


def main(paths):
    allowed, seen, bad = read_ratchet(), set(), 0
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            source = file.read()
        bad += wide_comments(path, source)
        bad += judge(path, f"{path}:1", source.count("\n"), FILE_LINES_MAX, allowed, seen)
        largest = {}
        for name, first, lines in functions_of(source):
            if lines > largest.get(name, (0, 0))[0]:
                largest[name] = (lines, first)
        for name, (lines, first) in largest.items():
            bad += judge(f"{path}:{name}", f"{path}:{first}", lines, FUNCTION_LINES_MAX, allowed, seen)
    for what in allowed.keys() - seen:
        print(f"{RATCHET}: {what} is gone: remove its line")
        bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
