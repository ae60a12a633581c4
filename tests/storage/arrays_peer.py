"""Arrays in NPZ and HDF5 files, as NumPy and h5py write them. Started by array_samples_test.cpp.

arrays_peer.py DIRECTORY    writes files, and prints a line for each field of each: the file, the field, the shape, and
                            the bytes in C order, little-endian, in hexadecimal; separated by tabs
Exit status 77: NumPy or h5py is not installed.
"""
import os
import sys

try:
    import h5py
    import numpy
except ImportError as missing:
    print(missing)
    sys.exit(77)

images = (numpy.arange(50 * 6 * 7) % 251).reshape(50, 6, 7)
fields = {"image": images.astype("u1"), "mask": numpy.asfortranarray(images.astype(">i4")),
          "label": numpy.arange(50, dtype="<i8") * 3}
directory = sys.argv[1]


def show(file, arrays):
    for name, array in arrays.items():
        little = numpy.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
        print(file, name, ",".join(map(str, array.shape)), little.tobytes().hex(), sep="\t")


numpy.savez(os.path.join(directory, "stored.npz"), **fields)
numpy.savez_compressed(os.path.join(directory, "packed.npz"), **fields)
show("stored.npz", fields)
show("packed.npz", fields)
with h5py.File(os.path.join(directory, "nested.h5"), "w") as file:
    file["train/image"] = fields["image"]
    file.create_dataset("train/mask", data=fields["mask"], chunks=(7, 3, 7), compression="gzip", shuffle=True)
    file.create_dataset("train/label", data=fields["label"], chunks=(16,))
    file["version"] = 3
show("nested.h5", {"train/" + name: array for name, array in fields.items()})
with h5py.File(os.path.join(directory, "mixed.h5"), "w") as file:
    file["a"] = fields["label"]
    file["b"] = fields["label"][:7]
    file["words"] = numpy.array(["one", "two"], dtype=h5py.string_dtype())
numpy.savez(os.path.join(directory, "objects.npz"), a=fields["label"], odd=numpy.array([{}, None], dtype=object))
