"""torch.distributed.checkpoint, one process, one file."""
import dataclasses
import os

import peer


def import_dcp():
    """Imports it. That of PyTorch 1.13 imports under Python 3.11 with hashable dataclasses alone."""
    try:
        from torch.distributed import checkpoint

        return checkpoint
    except ImportError:
        pass
    original = dataclasses.dataclass

    def hashable(cls=None, /, **options):
        if cls is None:
            return lambda cls: hashable(cls, **options)
        if not options.get("frozen") and "__hash__" not in cls.__dict__:
            options["unsafe_hash"] = True
        return original(cls, **options)

    dataclasses.dataclass = hashable
    try:
        from torch.distributed._shard import checkpoint
    except Exception as why:
        raise ImportError(f"torch.distributed.checkpoint: {why}") from why
    finally:
        dataclasses.dataclass = original
    return checkpoint


def load_peer():
    import torch

    dcp = import_dcp()

    class Dcp:
        NAME = "dcp"
        VERSION = torch.__version__

        build = staticmethod(peer.random_tensors)

        @staticmethod
        def save(model, path):
            os.makedirs(path, exist_ok=True)
            writer = dcp.FileSystemWriter(path, single_file_per_rank=True, sync_files=False)
            call = getattr(dcp, "save_state_dict", None) or dcp.save
            call(model, storage_writer=writer, no_dist=True)

        @staticmethod
        def restore(model, path):
            call = getattr(dcp, "load_state_dict", None) or dcp.load
            call(model, storage_reader=dcp.FileSystemReader(path), no_dist=True)

    return Dcp


if __name__ == "__main__":
    peer.run(load_peer)
