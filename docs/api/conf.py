"""The API reference of the package for Python, from its docstrings. `scripts/reference` runs Sphinx with it.

Neither a build nor PyTorch is needed: the compiled module, PyTorch and what stands on it are replaced by modules in which
every name is an empty class. Sphinx's own mocks give classes that derive from them the signature ``(*args, **kwargs)``.
"""

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import types

from docutils import nodes
from sphinx import addnodes

tree = pathlib.Path(__file__).resolve().parents[2]
release = re.search(r"^project\(millrace VERSION ([\d.]+)", (tree / "CMakeLists.txt").read_text(), re.M)[1]

# ---- What the package imports ----


class Absent(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


absent = {"torch", "lightning", "pytorch_lightning", "lightning_fabric", "transformers", "vllm"}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the absent modules."""

    def find_spec(self, name, path=None, target=None):
        if name == "millrace._native" or name.partition(".")[0] in absent:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Absent(spec.name)

    # What the package calls when it is imported, and when Python ends.
    def exec_module(self, module):
        if module.__name__ == "millrace._native":
            module.version = lambda: release
            module.open_requests = lambda: []
            for name in ("set_errors", "set_keeper", "set_ending"):
                setattr(module, name, lambda *_: None)


sys.dont_write_bytecode = True
sys.path.insert(0, str(tree / "bindings" / "python"))
sys.meta_path.insert(0, Finder())

import millrace  # noqa: E402

# ---- How it is shown ----

# Classes of which functions and methods make the objects.
made = {"Checkpoints", "Client", "Future", "Group", "Listing", "Node", "Publisher", "Repository", "SafeOpen", "Slice"} | {
    "Subscriber", "Weights",
    "data.Batch", "data.Producer", "data.SampleOrder", "data.SetReader", "data.Stream", "data.StreamReader", "data.WorkingSet"
}  # fmt: skip


def find(app, env, node, contnode):
    """Finds what docstrings name from another module, which is in `millrace` or `millrace.data`."""
    known, name = env.domaindata["py"]["objects"], node["reftarget"]
    found = known.get(f"millrace.{name}") or known.get(f"millrace.data.{name}")
    if found is None:
        return None
    uri = f"{app.builder.get_relative_uri(node['refdoc'], found.docname)}#{found.node_id}"
    return nodes.reference("", "", contnode, internal=True, refuri=uri)


def bases(app, name, obj, options, found):
    """Leaves out a private base. The other one has the same short name."""
    if obj is millrace.Future:
        found[:] = [":py:class:`concurrent.futures.Future`"]


def signature(app, what, name, obj, options, given, returned):
    """Leaves out the parameters of what no program makes."""
    hidden = what == "exception" or (what == "class" and name.removeprefix("millrace.") in made)
    return ("", None) if hidden else None


def docstring(app, what, name, obj, options, lines):
    """Changes docstrings before Napoleon reads them."""
    if lines and lines[0].startswith("Alias for field number"):
        del lines[:]  # a field that has no comment
    for i, line in enumerate(lines):
        lines[i] = re.sub(r"^(Raises[^:`]*|Threads): ", r"**\1:** ", line)
    code = next((i for i, line in enumerate(lines) if line.startswith("    ")), None)
    if what == "module" and code is not None:
        lines[code:code] = [".. code-block:: python", ""]


def shorten(app, doctree):
    """Shows short names in signatures, also where Sphinx writes whole ones."""
    for shown in doctree.findall(addnodes.desc_signature):
        for text in list(shown.findall(nodes.Text)):
            short = re.sub(r"\b(millrace\._\w+|millrace\.torch\._\w+|collections\.abc|os)\.(?=\w)", "", text)
            if short != text:
                text.parent.replace(text, nodes.Text(short))


def setup(app):
    app.connect("missing-reference", find)
    app.connect("autodoc-process-bases", bases)
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring, priority=400)  # Napoleon has 500
    app.connect("doctree-read", shorten)


# ---- Sphinx ----

project = "Millrace"
version = release
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "py:obj"
nitpicky = True
# The names of other projects, whose references are not here.
nitpick_ignore_regex = [
    ("py:.*", "|".join(name for name, of in vars(builtins).items() if isinstance(of, type))),
    ("py:.*", r"(asyncio|collections|concurrent|os|safetensors|torch|types|typing)\..*"),
    ("py:.*", r"CancelledError|DistributedDataParallel|ellipsis|FileSystem(Reader|Writer)|LoaderDataset|millrace\._future\.T"),
]
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False

html_theme = "furo" if importlib.util.find_spec("furo") else "alabaster"
html_title = f"Millrace {release} in Python"
html_copy_source = False
html_show_copyright = False
