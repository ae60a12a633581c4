"""Random batches of samples by PyTorch's DataLoader and by NumPy, from files of one array each.

`build` gets a table with a path and three numbers: samples, the bytes of each, and samples of a batch. The path is a
`.npy` file; or, if the bytes are 0, a directory with a file for each sample, which vary in size.
`measure(what, count)` returns the seconds of so many batches: `take` is `numpy.take` from memory; `memmap-W`, `h5py-W`
and `files-W` are DataLoaders with W workers; `files-W@S` computes S seconds after each batch. Before the time counts,
workers are started, and what they have read ahead is taken.
"""
import os
import shutil
import time

import peer

FILES_MAX = 4096  # of samples that are written one by one, for the peers that read files


def load_peer():
    import h5py
    import numpy
    import torch
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    class Memmap(Dataset):
        def __init__(self, path, samples):
            self.array = numpy.load(path, mmap_mode="r")
            self.samples = samples

        def __len__(self):
            return self.samples

        def __getitem__(self, i):
            # A copy: a view of memory that cannot be written is no tensor.
            return torch.from_numpy(numpy.array(self.array[i]))

    class Hdf5(Memmap):
        def __init__(self, path, samples):
            self.array = h5py.File(path + ".h5", "r")["x"]
            self.samples = samples

    kinds = {"memmap": Memmap, "h5py": Hdf5}

    class Folder(Dataset):
        def __init__(self, path):
            self.files = sorted(entry.path for entry in os.scandir(path))

        def __len__(self):
            return len(self.files)

        def __getitem__(self, i):
            return torch.from_numpy(numpy.fromfile(self.files[i], numpy.uint8))

    class Files:
        """The files of one table, and the loaders over them, which go on from measure to measure."""

        def __init__(self, path, samples, bytes_each, batch):
            self.path, self.samples, self.batch = path, samples, batch
            self.varies = bytes_each == 0
            self.running = {}
            self.folder = path if self.varies else path + ".files"
            if not self.varies:
                self.make_files()

        def make_files(self):
            self.array = numpy.array(numpy.load(self.path))
            self.target = numpy.empty((self.batch, self.array.shape[1]), self.array.dtype)
            self.random = numpy.random.default_rng(1)
            with h5py.File(self.path + ".h5", "w") as file:
                file.create_dataset("x", data=self.array)
            shutil.rmtree(self.folder, ignore_errors=True)
            os.mkdir(self.folder)
            for i, sample in enumerate(self.array[:FILES_MAX]):
                sample.tofile(f"{self.folder}/{i:08}.bin")

        def take(self, count):
            batches = self.random.integers(0, self.samples, (count, self.batch))
            begun = time.perf_counter()
            for ids in batches:
                numpy.take(self.array, ids, axis=0, out=self.target, mode="clip")
            return time.perf_counter() - begun

        def batches(self, what):
            """An iterator over random batches without an end."""
            if what not in self.running:
                kind, workers = what.split("-")
                data = Folder(self.folder) if kind == "files" else kinds[kind](self.path, self.samples)
                sampler = RandomSampler(data, replacement=True, num_samples=1 << 24)
                collate = list if self.varies else None  # samples of several sizes stay as they are
                self.running[what] = iter(
                    DataLoader(
                        data, self.batch, sampler=sampler, num_workers=int(workers), collate_fn=collate
                    )
                )
                next(self.running[what])
            return self.running[what]

        def load(self, what, count):
            what, _, compute = what.partition("@")
            compute = float(compute or 0)
            batches = self.batches(what)
            # What workers have read ahead in the meantime is no work of this measure.
            for _ in range(2 * int(what.split("-")[1])):
                next(batches)
            begun = time.perf_counter()
            for _ in range(count):
                next(batches)
                if compute > 0:
                    time.sleep(compute)
            return time.perf_counter() - begun

    class Loader:
        NAME = "loader"
        VERSION = f"PyTorch {torch.__version__}, h5py {h5py.__version__}, NumPy {numpy.__version__}"

        @staticmethod
        def build(table):
            path, shape = table[0]
            return Files(path, *shape)

        @staticmethod
        def measure(files, what, count):
            return files.take(count) if what == "take" else files.load(what, count)

    return Loader


if __name__ == "__main__":
    peer.run(load_peer)
