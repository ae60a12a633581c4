"""Archives as other programs see them. Started by archive_python_test.cpp.

archive_peer.py read FORMAT PATH     prints what PyTorch, NumPy or h5py finds in a file
archive_peer.py write FORMAT PATH    writes a file as their users do, and prints what is in it

One line a tensor, sorted: name, dtype, shape, bytes in hexadecimal, separated by tabs. Values that are no tensors have
the dtype json, no shape, and their JSON as bytes.
Exit status 77: the library is not installed.
"""
import json
import struct
import sys


def lines_of(arrays):
    return sorted("\t".join([name, dtype, ",".join(map(str, shape)), data.hex()])
                  for name, dtype, shape, data in arrays)


def of_numpy(name, array):
    little = array.astype(array.dtype.newbyteorder("<"))
    return name, str(little.dtype), array.shape, little.tobytes()


def of_torch(name, tensor):
    import torch
    dense = tensor.detach().contiguous()
    raw = torch.tensor([], dtype=torch.uint8).set_(
        dense.storage().untyped() if hasattr(dense.storage(), "untyped") else dense.storage())
    data = bytes(raw.numpy()[dense.storage_offset() * dense.element_size():][:dense.nelement() * dense.element_size()])
    return name, str(tensor.dtype).split(".")[1], tuple(tensor.shape), data


def read_torch(path):
    import torch
    return [of_torch(name, tensor) for name, tensor in torch.load(path, weights_only=True).items()]


def write_torch(path):
    import torch
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    model[2].half()
    state = model.state_dict()
    base = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
    views = {"transposed": base.permute(2, 0, 1), "row": base[1], "every_other": base[:, ::2],
             "expanded": torch.arange(4).expand(3, 4), "tied": base, "scalar": torch.tensor(3.5),
             "none": torch.zeros(0, 4), "größe": torch.randn(3).to(torch.bfloat16),
             "truth": torch.tensor([True, False, True]), "complex": torch.randn(3, dtype=torch.complex64),
             "complex128": torch.randn(2, 3, dtype=torch.complex128).T,
             "parameter": torch.nn.Parameter(torch.randn(2, 2))}
    state["nested"] = views
    torch.save(state, path)
    return ([of_torch(name, tensor) for name, tensor in model.state_dict().items()]
            + [of_torch("nested." + name, tensor) for name, tensor in views.items()])


def write_trainer(path):
    """What a training script saves: a model, its optimizer, and plain values."""
    import torch
    torch.manual_seed(7)
    model = torch.nn.Linear(5, 3)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    model(torch.randn(2, 5)).sum().backward()
    adam.step()
    plain = {"epoch": 3, "best": float("inf"), "note": "größe \"x\"\n", "history": [[1, 0.5], [], {}], "nothing": None,
             "seed": -2 ** 40, "done": False, "args": {"lr": 0.1, "betas": (0.9, 0.999)}}
    torch.save({"model": model.state_dict(), "optimizer": adam.state_dict(), **plain}, path)
    state = adam.state_dict()
    plain["optimizer.param_groups"] = state["param_groups"]
    tensors = [of_torch("model." + name, tensor) for name, tensor in model.state_dict().items()]
    for key, of_parameter in state["state"].items():
        tensors += [of_torch("optimizer.state.%s.%s" % (key, name), tensor) for name, tensor in of_parameter.items()]
    return tensors + [(name, "json", (), json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
                      for name, value in plain.items()]


def write_optimizer(path):
    """The state of an optimizer alone, without tensors and with them."""
    import torch
    torch.manual_seed(7)
    weight = torch.nn.Parameter(torch.randn(4))
    sgd = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    weight.sum().backward()
    sgd.step()
    torch.save(sgd.state_dict(), path)
    state = sgd.state_dict()
    return [of_torch("state.0.momentum_buffer", state["state"][0]["momentum_buffer"]),
            ("param_groups", "json", (), json.dumps(state["param_groups"], separators=(",", ":")).encode())]


def write_legacy(path):
    import torch
    torch.save({"w": torch.zeros(3)}, path, _use_new_zipfile_serialization=False)
    return []


def read_npz(path):
    import numpy
    with numpy.load(path, allow_pickle=False) as file:
        return [of_numpy(name, file[name]) for name in file.files if name != "__metadata__.json"]


def write_npz(path):
    import numpy
    arrays = {"plain": numpy.arange(24, dtype="<f4").reshape(2, 3, 4),
              "fortran": numpy.asfortranarray(numpy.arange(24, dtype="<i8").reshape(2, 3, 4)),
              "turned": numpy.arange(24, dtype="<f8").reshape(4, 6).T,
              "big": numpy.arange(10, dtype=">i4"), "big_complex": numpy.arange(4).astype(">c8"),
              "complex128": numpy.arange(4).astype("<c16") * 1j, "big_complex128": numpy.arange(4).astype(">c16") * 2j,
              "big_fortran": numpy.asfortranarray(numpy.arange(6, dtype=">u2").reshape(2, 3)),
              "scalar": numpy.float16(2.5), "none": numpy.zeros((0, 3), dtype="<u8"),
              "truth": numpy.array([[True], [False]]), "größe/x": numpy.arange(3, dtype="i1")}
    with open(path, "wb") as file:
        (numpy.savez_compressed if path.endswith("compressed") else numpy.savez)(file, **arrays)
    return [of_numpy(name, numpy.asarray(array)) for name, array in arrays.items()]


def read_hdf5(path):
    import h5py
    with h5py.File(path, "r") as file:
        return [of_numpy(name, data[()]) for name, data in file.items()]


def write_hdf5(path):
    import h5py
    import numpy
    arrays = {"plain": numpy.arange(24, dtype="<f4").reshape(2, 3, 4), "group/inner/big": numpy.arange(10, dtype=">i4"),
              "group/truth": numpy.array([True, False]), "half": numpy.arange(4).astype("<f2"),
              "big_half": numpy.arange(4).astype(">f2"), "complex": numpy.arange(4).astype("<c8"),
              "complex128": numpy.arange(6).astype("<c16").reshape(2, 3) * 1j, "big_complex128": numpy.arange(4).astype(">c16"),
              "none": numpy.zeros((0, 3), dtype="<u8"), "größe": numpy.arange(3, dtype="i1")}
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        chunked = arrays["chunked"] = numpy.arange(3 * 50 * 70, dtype="<u2").reshape(3, 50, 70)
        file.create_dataset("chunked", data=chunked, chunks=(2, 13, 17), compression="gzip", shuffle=True)
        file["scalar"] = arrays["scalar"] = numpy.float64(3)
        file.attrs["epoch"] = "3"
    return [of_numpy(name, numpy.asarray(array)) for name, array in arrays.items()]


TYPES = {"F32": ("float32", 4), "BF16": ("bfloat16", 2), "I64": ("int64", 8), "F8_E4M3": ("float8_e4m3fn", 1),
         "BOOL": ("bool", 1)}


def read_safetensors(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        assert length % 8 == 0
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    found = []
    for name, about in header.items():
        begin, end = about["data_offsets"]
        dtype, width = TYPES[about["dtype"]]
        assert begin % width == 0, name
        found.append((name, dtype, about["shape"], data[begin:end]))
    return found


def write_safetensors(path):
    header, data, wrote = {"__metadata__": {"format": "pt"}}, b"", []
    for name, kind, shape in [("b", "I64", [2]), ("größe", "BF16", [3, 2]), ("a", "F8_E4M3", [5]), ("none", "F32", [0]),
                              ("s", "F32", [])]:
        dtype, width = TYPES[kind]
        count = width
        for extent in shape:
            count *= extent
        content = bytes((i * 37 + len(data)) & 255 for i in range(count))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += content
        wrote.append((name, dtype, shape, content))
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return wrote


def main(verb, form, path):
    try:
        found = globals()[verb + "_" + form](path)
    except ImportError as missing:
        print(missing)
        return 77
    print("\n".join(lines_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
