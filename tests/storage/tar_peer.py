"""Tar archives as Python's tarfile and GNU tar write them. Started by tar_samples_test.cpp.

tar_peer.py DIRECTORY    writes archives, and prints a line for each file of each: the archive, the key, the field, and the
                         bytes in hexadecimal; separated by tabs
Exit status 77: GNU tar, gzip or zstd is not installed.
"""
import io
import os
import shutil
import subprocess
import sys
import tarfile

if missing := [name for name in ("tar", "gzip", "zstd") if shutil.which(name) is None]:
    print("without", missing)
    sys.exit(77)

directory = sys.argv[1]
samples = []
for number in range(40):
    key = f"train/{number:04}"
    if number % 10 == 3:
        key = "long/" + "name/" * 30 + f"sample-{number}"  # longer than a header of ustar holds
    if number % 10 == 7:
        key = f"tr\u00e4in/\u65e5\u672c-{number}"
    image = bytes((number * 7 + i * i) % 251 for i in range(number * number * 13 % 4099))
    samples.append((key, {"cls": b"%d\n" % (number - 20), "jpg": image, "seg.png": image[::-1][:100]}))


def show(archive, some):
    for key, files in some:
        for field, content in files.items():
            print(archive, key, field, content.hex(), sep="\t")


def add(archive, some):
    for key, files in some:
        for field, content in files.items():
            entry = tarfile.TarInfo(f"{key}.{field}")
            entry.size = len(content)
            entry.mtime = 1700000000.25  # pax writes it in a header of its own
            archive.addfile(entry, io.BytesIO(content))


for name, form, mode in [("pax.tar", tarfile.PAX_FORMAT, "w"), ("gnu.tar", tarfile.GNU_FORMAT, "w"),
                         ("ustar.tar", tarfile.USTAR_FORMAT, "w"), ("pax.tar.gz", tarfile.PAX_FORMAT, "w:gz"),
                         ("gnu.tgz", tarfile.GNU_FORMAT, "w:gz")]:
    with tarfile.open(os.path.join(directory, name), mode, format=form, encoding="utf-8") as archive:
        add(archive, samples)
    show(name, samples)

root = os.path.join(directory, "files")
for key, files in samples:
    os.makedirs(os.path.dirname(os.path.join(root, key)), exist_ok=True)
    for field, content in files.items():
        with open(os.path.join(root, f"{key}.{field}"), "wb") as file:
            file.write(content)
by_name = sorted(samples, key=lambda sample: sample[0].encode())
names = "\0".join(f"{key}.{field}" for key, files in by_name for field in files).encode()
for name, options in [("posix.tar", ["--format=posix"]), ("gnutar.tar", ["--format=gnu"]), ("v7.tar.zst", ["--zstd"])]:
    subprocess.run(["tar", *options, "-cf", os.path.join(directory, name), "-C", root, "--null", "-T", "-"], input=names,
                   check=True)
    show(name, by_name)
shutil.rmtree(root)
