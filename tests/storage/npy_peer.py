"""Arrays as NumPy writes them. Started by npy_samples_test.cpp.

npy_peer.py DIRECTORY    writes .npy files, and prints a line for each: its name, the shape, and the bytes of the array in
                         C order, little-endian, in hexadecimal; separated by tabs
Exit status 77: NumPy is not installed.
"""
import os
import sys

try:
    import numpy
except ImportError as missing:
    print(missing)
    sys.exit(77)

cube = numpy.arange(3 * 4 * 5).reshape(3, 4, 5)
arrays = {
    "plain": cube.astype("<f4"), "fortran": numpy.asfortranarray(cube.astype("<i8")), "turned": cube.astype("<f8").T,
    "big": cube.astype(">i4"), "big_fortran": numpy.asfortranarray(cube.astype(">u2")), "half": cube.astype("<f2"),
    "complex": cube.astype("<c8") * (1 + 2j), "big_complex": (cube * (3 - 1j)).astype(">c16"),
    "big_fortran_complex": numpy.asfortranarray((cube * (3 - 1j)).astype(">c8")), "truth": cube % 3 == 0,
    "labels": numpy.arange(7, dtype="i1"), "one": numpy.asfortranarray(cube[:1].astype("<u4")),
    "none": numpy.zeros((0, 3), dtype="<u8"),
}
for name, array in arrays.items():
    for version in (1, 2, 3):
        file_name = f"{name}{version}.npy"
        with open(os.path.join(sys.argv[1], file_name), "wb") as file:
            numpy.lib.format.write_array(file, array, version=(version, 0), allow_pickle=False)
        little = numpy.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
        print(file_name, ",".join(map(str, array.shape)), little.tobytes().hex(), sep="\t")
numpy.save(os.path.join(sys.argv[1], "objects.npy"), numpy.array([{}, None], dtype=object))
