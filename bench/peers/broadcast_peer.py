"""Weights from one process to others, by a file of torch.save or by a broadcast of gloo.

A path is that of a file. `gloo:FILE:RANK:SIZE` stands for the broadcast instead: where the processes meet, and which of
them this one is; the first one saves, and the others restore. `measure("fill", n)` gives the tensors values that depend on
n, and `measure("sum", 0)` returns what tells whether two processes have the same ones.
"""
import datetime
import os

import peer


def load_peer():
    import torch
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)  # as torchrun has it; more of them are slower where processes share the cores

    def broadcast(model, path):
        _, place, rank, size = path.split(":")
        if not dist.is_initialized():
            dist.init_process_group(
                "gloo", f"file://{place}", datetime.timedelta(seconds=60), int(size), int(rank)
            )
        for work in [dist.broadcast(tensor, 0, async_op=True) for tensor in model.values()]:
            work.wait()

    class Broadcast:
        NAME = "broadcast"
        VERSION = torch.__version__

        build = staticmethod(peer.random_tensors)

        @staticmethod
        def save(model, path):
            if path.startswith("gloo:"):
                broadcast(model, path)
            else:
                torch.save(model, path)

        @staticmethod
        def restore(model, path):
            if path.startswith("gloo:"):
                broadcast(model, path)
            else:
                peer.copy_into(model, torch.load(path))

        @staticmethod
        def measure(model, what, count):
            if what == "fill":
                for tensor in model.values():
                    tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 4093 + count)
            # Not the same for tensors in another order. Numbers of JSON are exact up to 2^53.
            words = (tensor.view(torch.int32).sum(dtype=torch.int64) for tensor in model.values())
            return sum((i + 1) * int(word) for i, word in enumerate(words)) % 2**40

    return Broadcast


if __name__ == "__main__":
    peer.run(load_peer)
