"""One peer of a benchmark as a helper process: commands come in and times go out, a JSON line each.

A peer is a module with NAME, VERSION and a few functions; see torch_peer.py. Tensors are built once, so that
only saving and loading is timed. A path may be a directory: a peer may write several files.
"""
import json
import os
import sys
import time


def random_tensors(table):
    """The tensors of PyTorch that a table names."""
    import torch

    return {name: torch.rand(shape, dtype=torch.float32) for name, shape in table}


def copy_into(model, loaded):
    """Into the tensors that are there, as `load_state_dict` does."""
    for name, tensor in model.items():
        tensor.copy_(loaded[name])


def files_of(path):
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(path, name) for name in os.listdir(path)]


def drop_from_cache(path):
    """Forgets a file's cached pages. It must have been synced."""
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def sync(path):
    for name in files_of(path):
        fd = os.open(name, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def save(peer, model, ask):
    begun = time.perf_counter()
    peer.save(model, ask["path"])
    if ask.get("sync"):
        sync(ask["path"])
    return time.perf_counter() - begun


def stages(peer, model, ask):
    """Seconds of a save by what it does; nothing where a peer cannot tell."""
    return peer.save_by_stages(model, ask["path"]) if hasattr(peer, "save_by_stages") else {}


def load(peer, model, ask):
    if ask.get("cold"):
        sync(ask["path"])
        drop_from_cache(ask["path"])
    begun = time.perf_counter()
    if ask.get("live"):
        loaded = peer.restore(model, ask["path"])
    else:
        loaded = peer.load(model, ask["path"], ask.get("names"))
    seconds = time.perf_counter() - begun
    del loaded
    return seconds


def build(peer, ask):
    if "iteration_s" in ask:
        return peer.build_training(ask["table"], ask["iteration_s"], ask["cores"])
    return peer.build(ask["table"])


def serve(peer):
    print(json.dumps({"peer": peer.NAME, "version": peer.VERSION}), flush=True)
    model = None
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["do"] == "build":
                model = None
                model = build(peer, ask)
                answer = {}
            elif ask["do"] == "train":
                answer = {"s": model.train(ask["iterations"], ask["distance"], ask["path"])}
            elif ask["do"] == "measure":
                answer = {"s": peer.measure(model, ask["what"], ask["count"])}
            elif ask["do"] == "save":
                answer = {"s": save(peer, model, ask)}
            elif ask["do"] == "stages":
                answer = {"stages": stages(peer, model, ask)}
            elif ask["do"] == "load":
                answer = {"s": load(peer, model, ask)}
            else:
                answer = {"error": "no command " + ask["do"]}
        except Exception as why:  # whatever it is, the benchmark shall say so
            answer = {"error": f"{type(why).__name__}: {why}"}
        print(json.dumps(answer), flush=True)


def run(load_peer):
    """Serves the peer that `load_peer` gives, or says why there is none."""
    try:
        peer = load_peer()
    except ImportError as why:
        print(json.dumps({"missing": str(why)}), flush=True)
        return
    serve(peer)
