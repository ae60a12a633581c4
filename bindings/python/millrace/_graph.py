"""Architectures: the leaf layers of models, and identities that tell what two models share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from . import _native
from ._errors import InvalidArgument
from ._tensors import Batch, batch_of


class Layer(NamedTuple):
    """A leaf layer: its structure, what feeds it, and its tensors."""

    label: str | None  #: Where it is in its model, no part of its identity.
    kind: str  #: Its class, such as ``Linear``.
    attributes: dict[str, str]  #: Its hyper-parameters.
    inputs: tuple[int, ...]  #: The indices of the layers that feed it.
    id: bytes  #: 16 bytes, equal for equal structures that are fed by equal ones.
    tensors: dict[str, str]  #: The names of its tensors in the model by their roles.


class Description(NamedTuple):
    """What is known of a layer before it is identified."""

    label: str
    kind: str
    attributes: Mapping[str, str]
    inputs: Sequence[int]


class Graph:
    """The architecture of a model (DStore, sections 3 and 4).

    A layer's identity comes from its kind, its attributes, the types and shapes of its tensors,
    and the identities of what feeds it. It does not depend on labels.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        #: The layers; what feeds one is named by its place here.
        self.layers = tuple(layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"<millrace.Graph of {len(self)} layers>"

    @staticmethod
    def _of(layers: Iterable[Description], tensors: Mapping[str, object]) -> Graph:
        """Identifies layers that have these tensors.

        A tensor belongs to the layer with the longest label that its name begins with; that of
        the empty label has all others. Of tensors that are the same memory the first one counts.
        """
        given = list(layers)
        batch, _ = batch_of(tensors, writable=False) if tensors else (Batch(), {})
        ids = _native.identify(_natives(given), batch.native())
        by_label: dict[str, dict[str, str]] = {d.label: {} for d in given}
        for line in batch.lines:
            label = _label_of(line.name, by_label)
            by_label[label][_role(line.name, label)] = line.name
        found = []
        for d, id in zip(given, ids):
            # Several layers may have no label, and then the first one has the tensors.
            tensors_of = by_label.pop(d.label, {})
            found.append(
                Layer(d.label, d.kind, dict(d.attributes), tuple(d.inputs), id, tensors_of)
            )
        return Graph(found)

    @staticmethod
    def _described(request: _native.Request, names: Sequence[str]) -> Graph:
        of: dict[int, list[str]] = defaultdict(list)
        for name, layer in zip(names, request.tensor_layers()):
            of[layer].append(name)
        found = []
        for i, (label, kind, attributes, inputs, id) in enumerate(request.layers()):
            tensors = {_role(n, label): n for n in of[i]}
            found.append(Layer(label, kind, dict(attributes), inputs, id, tensors))
        return Graph(found)

    def shared(self, other: Graph) -> dict[str, str]:
        """Returns the tensors of layers that the other model has, too, and their names there.

            here = mr.torch.graph(child)
            names = here.shared(repo.describe("parent").result().graph)
            state = child.state_dict()
            repo.load_into("parent", {there: state[name] for name, there in names.items()}).result()
        """
        theirs: dict[bytes, list[Layer]] = defaultdict(list)
        for layer in reversed(other.layers):
            theirs[layer.id].append(layer)
        out: dict[str, str] = {}
        for layer in self.layers:
            # Of several that are equal the first is like the first.
            if there := theirs[layer.id]:
                same = there.pop()
                out.update({name: same.tensors[role] for role, name in layer.tensors.items()})
        return out

    def _native_for(self, names: Iterable[str]) -> _native.Layers:
        """The layers as a store takes them, whose tensors must be those of the graph."""
        own = {name for layer in self.layers for name in layer.tensors.values()}
        given = set(names)
        if own != given:
            more, less = sorted(given - own), sorted(own - given)
            raise InvalidArgument(
                "graph: its tensors are not those that are stored"
                + (f"; {more[0]} is none of its {len(own)}" if more else "")
                + (f"; it has {less[0]}, too" if less else "")
            )
        return _natives(self.layers)


def _natives(layers: Iterable[Description | Layer]) -> _native.Layers:
    return _native.layers(
        [(x.label or "", x.kind, list(x.attributes.items()), x.inputs) for x in layers]
    )


def _role(name: str, label: str | None) -> str:
    """Returns the name of a tensor without the label of its layer."""
    return name[len(label) + 1 :] if label else name


def _label_of(name: str, labels: Mapping[str, object]) -> str:
    end = name.rfind(".")
    while end > 0:
        if name[:end] in labels and end + 1 < len(name):
            return name[:end]
        end = name.rfind(".", 0, end)
    return ""
