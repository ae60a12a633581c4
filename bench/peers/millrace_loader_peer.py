"""The package's loader: batches as NumPy arrays in the memory of its ring.

MILLRACE_ADDRESS of the environment names the service. `build` gets a table with the name of a working set and four
numbers: samples, the bytes of each, samples of a batch, and batches that are read ahead. `measure` as that of
loader_peer.py, of `next@S`.
"""
import time

import peer


def load_peer():
    import numpy

    import millrace as mr

    client = mr.connect()

    class Training:
        """A loader that goes on from measure to measure, epoch after epoch."""

        def __init__(self, name, batch, prefetch):
            self.loader = mr.data.Loader(
                client.working_set(name),
                batch,
                seed=1,
                drop_last=True,
                prefetch=prefetch,
                rank=0,
                world_size=1,
                fields=["x"],
                framework="np",
            )
            self.prefetch = prefetch
            self.batches = self.endless()
            next(self.batches)

        def endless(self):
            while True:
                for batch in self.loader:
                    assert isinstance(batch.x, numpy.ndarray)
                    yield batch.x
                    batch.release()

        def take(self, count, compute):
            # What was read ahead in the meantime is no work of this measure.
            for _ in range(self.prefetch):
                next(self.batches)
            begun = time.perf_counter()
            for _ in range(count):
                next(self.batches)
                if compute > 0:
                    time.sleep(compute)
            return time.perf_counter() - begun

    class Millrace:
        NAME = "millrace"
        VERSION = mr.__version__

        @staticmethod
        def build(table):
            name, (_, _, batch, prefetch) = table[0]
            return Training(name, batch, prefetch)

        @staticmethod
        def measure(training, what, count):
            return training.take(count, float(what.partition("@")[2]))

    return Millrace


if __name__ == "__main__":
    peer.run(load_peer)
