"""torch.save and torch.load of a dictionary of tensors."""
import io
import time

import peer


def load_peer():
    import torch

    class Torch:
        NAME = "torch"
        VERSION = torch.__version__

        build = staticmethod(peer.random_tensors)

        @staticmethod
        def save(model, path):
            torch.save(model, path)

        @staticmethod
        def save_by_stages(model, path):
            """The same bytes as `save`, first pickled into memory, then written to the file."""
            begun = time.perf_counter()
            pickled = io.BytesIO()
            torch.save(model, pickled)
            serialised = time.perf_counter()
            with open(path, "wb") as file:
                file.write(pickled.getbuffer())
            return {"serialise": serialised - begun, "write": time.perf_counter() - serialised}

        @staticmethod
        def load(model, path, names):
            loaded = torch.load(path)
            return {name: loaded[name] for name in names} if names else loaded

        @staticmethod
        def restore(model, path):
            peer.copy_into(model, torch.load(path))

    return Torch


if __name__ == "__main__":
    peer.run(load_peer)
