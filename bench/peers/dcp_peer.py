"""torch.distributed.checkpoint, one process, one file."""
import os

import peer


def load_peer():
    import torch

    try:
        from torch.distributed import checkpoint as dcp
    except ImportError:
        # Where older versions have it. Some of them do not import with newer interpreters.
        try:
            from torch.distributed._shard import checkpoint as dcp
        except Exception as why:
            raise ImportError(f"torch.distributed.checkpoint: {why}") from why

    class Dcp:
        NAME = "dcp"
        VERSION = torch.__version__

        @staticmethod
        def build(table):
            return {name: torch.rand(shape, dtype=torch.float32) for name, shape in table}

        @staticmethod
        def save(model, path):
            os.makedirs(path, exist_ok=True)
            writer = dcp.FileSystemWriter(path, single_file_per_rank=True, sync_files=False)
            dcp.save_state_dict(model, writer, no_dist=True)

        @staticmethod
        def restore(model, path):
            dcp.load_state_dict(model, dcp.FileSystemReader(path), no_dist=True)

    return Dcp


if __name__ == "__main__":
    peer.run(load_peer)
