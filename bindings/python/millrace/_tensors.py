"""Where the elements of tensors lie: PyTorch, NumPy, DLPack, CUDA arrays, and buffers.

Nothing is copied here. PyTorch and NumPy are not imported: their objects say what they are.
"""

from __future__ import annotations

import itertools
import math
import operator
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import _native
from ._errors import InvalidArgument

#: The element types by their numbers in the C interface: (safetensors' name, NumPy's, bits).
DTYPES: tuple[tuple[str, str, int], ...] = (
    ("BOOL", "bool", 8),
    ("F4", "float4_e2m1fn", 4),
    ("F6_E2M3", "float6_e2m3fn", 6),
    ("F6_E3M2", "float6_e3m2fn", 6),
    ("U8", "uint8", 8),
    ("I8", "int8", 8),
    ("F8_E5M2", "float8_e5m2", 8),
    ("F8_E4M3", "float8_e4m3fn", 8),
    ("F8_E8M0", "float8_e8m0fnu", 8),
    ("I16", "int16", 16),
    ("U16", "uint16", 16),
    ("F16", "float16", 16),
    ("BF16", "bfloat16", 16),
    ("I32", "int32", 32),
    ("U32", "uint32", 32),
    ("F32", "float32", 32),
    ("C64", "complex64", 64),
    ("F64", "float64", 64),
    ("I64", "int64", 64),
    ("U64", "uint64", 64),
    ("C128", "complex128", 128),
)
_number_of = {name: number for number, (_, name, _) in enumerate(DTYPES)}
_by_name = {name: number for number, (name, _, _) in enumerate(DTYPES)}
_number_of_torch: dict[Any, int] = {}

# Characters of the struct module, for elements of these sizes.
_FORMATS = {"?": "bool", "e": "float", "f": "float", "d": "float", "Zf": "complex", "Zd": "complex"}
_FORMATS.update(dict.fromkeys("bhilqn", "int"), **dict.fromkeys("BHILQNc", "uint"))
_TYPESTR = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
# Codes of DLPack.
_DLPACK = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_DLPACK_SMALL = {10: "float8_e4m3fn", 12: "float8_e5m2", 14: "float8_e8m0fnu"}


class Line(NamedTuple):
    """One tensor, as the C interface takes it."""

    name: str
    address: int
    dtype: int
    shape: Sequence[int]
    strides: Sequence[int] | None  # in bytes; None: dense, the last index fastest
    offsets: Sequence[int] | None = None
    global_shape: Sequence[int] | None = None

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][2] // 8


class Batch:
    """The tensors of one operation, and what keeps them in memory."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.owners: list[object] = []
        self.streams: dict[Any, Any] = {}

    def add(self, name: str, tensor: object, *, writable: bool) -> Line:
        line = self._describe(name, tensor, writable)
        self.lines.append(line)
        return line

    def native(self) -> _native.Tensors:
        return _native.tensors(self.lines, self.owners)

    def synchronize(self) -> None:
        """Waits for what the current CUDA streams do with the tensors."""
        for stream in self.streams.values():
            stream.synchronize()

    def _describe(self, name: str, tensor: Any, writable: bool) -> Line:
        if not isinstance(name, str):
            raise TypeError(f"the name of a tensor is a str, not {type(name).__name__}")
        if "\0" in name or not name.isascii() and not _is_utf8(name):
            raise InvalidArgument(f"the name of a tensor, {name!r}, is no text in UTF-8 without NUL")
        if hasattr(tensor, "data_ptr"):
            return self._torch(name, tensor)
        if hasattr(tensor, "__cuda_array_interface__"):
            self.owners.append(tensor)
            return _array(name, tensor.__cuda_array_interface__, tensor, writable)
        # Arrays alone: the interface of a NumPy scalar names a copy, which does not live on.
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(tensor, numpy.ndarray):
            if isinstance(tensor, numpy.ma.MaskedArray):
                raise InvalidArgument(f"{name}: an array with a mask; give its data or filled()")
            self.owners.append(tensor)
            return _array(name, tensor.__array_interface__, tensor, writable)
        if hasattr(tensor, "__dlpack__"):
            return self._dlpack(name, tensor, writable)
        try:
            return self._buffer(name, tensor, writable)
        except TypeError:
            raise TypeError(
                f"{name}: {type(tensor).__name__} is no tensor, array or buffer"
                + (
                    "; store nested dictionaries by millrace.torch.save"
                    if isinstance(tensor, (Mapping, list, tuple, int, float, str))
                    else ""
                )
            ) from None

    def _torch(self, name: str, t: Any) -> Line:
        if hasattr(t, "to_local"):
            raise InvalidArgument(
                f"{name}: a distributed tensor; give its to_local(), or use "
                "millrace.torch.Checkpointer"
            )
        kind = t.device.type
        if kind not in ("cpu", "cuda") or str(t.layout) != "torch.strided" or t.is_quantized:
            raise InvalidArgument(
                f"{name}: a tensor on {t.device} with layout {t.layout}"
                f"{', quantized' if t.is_quantized else ''}: dense ones on cpu and cuda can be used"
            )
        try:
            address, strides = t.data_ptr(), t.stride()
        except (RuntimeError, NotImplementedError, ValueError) as e:
            raise InvalidArgument(f"{name}: {e}") from None
        if t.is_conj() or t.is_neg():
            raise InvalidArgument(
                f"{name}: its elements are conjugated or negated when they are read: "
                "give resolve_conj() or resolve_neg() of it"
            )
        dtype = _number_of_torch.get(t.dtype)
        if dtype is None:
            dtype = _number_of.get(str(t.dtype).removeprefix("torch."))
            if dtype is None:
                raise InvalidArgument(
                    f"{name}: elements of {t.dtype} are not known; give t.view(torch.uint8)"
                )
            _number_of_torch[t.dtype] = dtype
        # The memory itself: `t.data = other` would free it.
        self.owners.append(t.detach())
        if kind == "cuda" and t.device not in self.streams:
            self.streams[t.device] = sys.modules["torch"].cuda.current_stream(t.device)
        if t.is_contiguous():
            return Line(name, address, dtype, t.shape, None)
        size = t.element_size()
        return Line(name, address, dtype, t.shape, [n * size for n in strides])

    def _buffer(self, name: str, obj: object, writable: bool) -> Line:
        try:
            view, address, form, item, shape, strides, _ = _native.buffer(obj, writable)
        except BufferError as e:
            raise InvalidArgument(f"{name}: {e}") from None
        self.owners.append(view)
        kind = _FORMATS.get(form.lstrip("@=<"))
        if kind is None or form[0] in ">!":
            raise InvalidArgument(f"{name}: elements of the format {form!r} are not known")
        return Line(name, address, _known(name, kind, item * 8), shape, strides)

    def _dlpack(self, name: str, obj: Any, writable: bool) -> Line:
        try:
            capsule = obj.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = obj.__dlpack__()
        view, address, code, bits, shape, strides, device, _, read_only = _native.dlpack(capsule)
        self.owners.append(view)
        if writable and read_only:
            raise InvalidArgument(f"{name}: its memory can only be read")
        # The host's memory, pinned too; CUDA's, managed too.
        if device not in (1, 2, 3, 13):
            raise InvalidArgument(f"{name}: memory of the DLPack device {device} cannot be used")
        kind = _DLPACK.get(code)
        dtype = _number_of[_DLPACK_SMALL[code]] if code in _DLPACK_SMALL else None
        if dtype is None and kind is None:
            raise InvalidArgument(f"{name}: elements of the DLPack code {code} are not known")
        if dtype is None:
            dtype = _known(name, kind or "", bits)
        size = bits // 8
        return Line(
            name, address, dtype, shape, None if strides is None else [n * size for n in strides]
        )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def number_of(dtype: str) -> int:
    """Returns the number of an element type by safetensors' name for it."""
    return _by_name[dtype]


def checked(what: str, value: Any, low: int, high: int) -> int:
    """Returns a whole number. Raises `InvalidArgument` when it is not between the bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: a whole number, not {type(value).__name__}") from None
    if not low <= number <= high:
        raise InvalidArgument(f"{what}: {number} is not between {low} and {high}")
    return number


def _known(name: str, kind: str, bits: int) -> int:
    dtype = _number_of.get("bool" if kind == "bool" and bits == 8 else f"{kind}{bits}")
    if dtype is None:
        raise InvalidArgument(f"{name}: {kind} elements of {bits} bits are not known")
    return dtype


# NumPy's interface, and that of CUDA arrays, which is like it.
def _array(name: str, face: Mapping[str, Any], obj: Any, writable: bool) -> Line:
    order, kind = face["typestr"][0], face["typestr"][1]
    address, read_only = face["data"]
    if writable and read_only:
        raise InvalidArgument(f"{name}: its memory can only be read")
    if face.get("mask") is not None:
        raise InvalidArgument(f"{name}: arrays with a mask cannot be used")
    if order == ">":
        raise InvalidArgument(
            f"{name}: big-endian elements; give a.astype(a.dtype.newbyteorder('='))"
        )
    if kind in _TYPESTR:
        dtype = _known(name, _TYPESTR[kind], int(face["typestr"][2:]) * 8)
    else:
        # Types that NumPy does not have, such as ml_dtypes' bfloat16.
        known = _number_of.get(str(getattr(obj, "dtype", "")))
        if known is None or DTYPES[known][2] < 8:
            raise InvalidArgument(
                f"{name}: elements of {getattr(obj, 'dtype', face['typestr'])} are not known"
            )
        dtype = known
    return Line(name, address, dtype, face["shape"], face.get("strides"))


def tensors_of(source: object) -> Mapping[str, object]:
    """Returns the tensors of a module, or those of a dictionary."""
    state = getattr(source, "state_dict", None)
    found = state() if callable(state) else source
    if not isinstance(found, Mapping):
        raise TypeError(
            f"tensors: a module, or a dictionary of tensors, not {type(source).__name__}"
        )
    return found


def batch_of(
    tensors: Mapping[str, object] | Iterable[tuple[str, object]], *, writable: bool
) -> tuple[Batch, dict[str, str]]:
    """Describes all tensors, of those that are the same memory the first one.

    Returns them, and for the other ones by which name the first one is there.
    """
    batch, tied = Batch(), {}
    seen: dict[tuple[object, ...], str] = {}
    items = tensors.items() if isinstance(tensors, Mapping) else tensors
    if not isinstance(tensors, Mapping) and not isinstance(tensors, (list, tuple)):
        raise TypeError(f"tensors: a dictionary of names and tensors, not {type(tensors).__name__}")
    for name, tensor in items:
        line = batch.add(name, tensor, writable=writable)
        if 0 in line.shape:
            continue
        strides = None if line.strides is None else tuple(line.strides)
        key = line.address, line.dtype, tuple(line.shape), strides
        first = seen.setdefault(key, name)
        if first != name:
            tied[name] = first
            batch.lines.pop()
            batch.owners.pop()
    if not batch.lines:
        raise InvalidArgument("tensors: there are none")
    return batch, tied


def _type_in_torch(name: str, bits: int, remedy: str) -> Any:
    import torch

    kind = getattr(torch, name, None)
    if kind is None or bits < 8:
        raise InvalidArgument(f"this version of PyTorch has no elements of {name}; {remedy}")
    return kind


def _type_in_numpy(name: str, bits: int, remedy: str) -> Any:
    import numpy

    try:
        return numpy.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        if bits < 8:
            raise AttributeError
        return numpy.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise InvalidArgument(
            f"NumPy has no elements of {name}; {remedy}, or install ml_dtypes"
        ) from None


def _is_torch(framework: str) -> bool:
    if framework in ("pt", "torch", "pytorch"):
        return True
    if framework in ("np", "numpy"):
        return False
    raise InvalidArgument(f'framework: "pt" or "np", not {framework!r}')


def empty(framework: str, dtype: int, shape: Sequence[int], device: Any, raw: bool) -> Any:
    """Makes a tensor of PyTorch (``"pt"``) or an array of NumPy (``"np"``), without elements."""
    _, name, bits = DTYPES[dtype]
    if raw:
        shape = [bits * math.prod(shape) // 8] if bits % 8 else [*shape, bits // 8]
        name, bits = "uint8", 8
    remedy = "ask with raw=True"
    if _is_torch(framework):
        import torch

        kind = _type_in_torch(name, bits, remedy)
        return torch.empty(tuple(shape), dtype=kind, device=device)
    import numpy

    return numpy.empty(tuple(shape), dtype=_type_in_numpy(name, bits, remedy))


def view(framework: str, dtype: int, shape: Sequence[int], memory: Any) -> Any:
    """Makes a tensor or an array whose elements lie in a buffer, and which keeps the buffer."""
    _, name, bits = DTYPES[dtype]
    has_none = 0 in shape  # neither framework takes an empty buffer
    if _is_torch(framework):
        import torch

        kind = _type_in_torch(name, bits, 'ask with framework="np"')
        if has_none:
            return torch.empty(tuple(shape), dtype=kind)
        return torch.frombuffer(memory, dtype=kind).reshape(tuple(shape))
    import numpy

    kind = _type_in_numpy(name, bits, 'ask with framework="pt"')
    if has_none:
        return numpy.empty(tuple(shape), dtype=kind)
    return numpy.frombuffer(memory, dtype=kind).reshape(tuple(shape))


def view_on(device: Any, dtype: int, shape: Sequence[int], memory: Any) -> Any:
    """Makes a tensor of PyTorch whose elements lie in memory of a GPU, and which keeps it."""
    import torch

    _, name, bits = DTYPES[dtype]
    kind = _type_in_torch(name, bits, "choose other fields")
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=kind, device=device)
    return torch.as_tensor(memory, device=device).view(kind).reshape(tuple(shape))


def gpu(device: Any, framework: str) -> Any:
    """Returns PyTorch's device of CUDA with its number; ``None`` for memory of the host."""
    if device is None or str(device) == "cpu":
        return None
    if not _is_torch(framework):
        raise InvalidArgument('device: what lies on a GPU are tensors of PyTorch: framework="pt"')
    import torch

    try:
        found = torch.device(device)
    except RuntimeError as e:
        raise InvalidArgument(f"device: {e}") from None
    if found.type != "cuda":
        raise InvalidArgument(f"device: {device}; batches can go to cpu and to cuda")
    if not torch.cuda.is_available():
        raise InvalidArgument(f"device: {device}, and this PyTorch finds no GPU that it can use")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def integers(framework: str, name: str, memory: bytearray) -> Any:
    """Makes a vector of a type by NumPy's name, whose elements lie in a buffer."""
    dtype = _number_of[name]
    return view(framework, dtype, [len(memory) * 8 // DTYPES[dtype][2]], memory)


def parts(whole: Any, offsets: Iterable[int]) -> list[Any]:
    """Returns the views of a tensor or an array between offsets along its first dimension."""
    return [whole[begin:end] for begin, end in itertools.pairwise(offsets)]
