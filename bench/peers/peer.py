"""One peer of the store benchmark as a helper process: commands come in and times go out, a JSON line each.

A peer is a module with NAME, VERSION and three functions; see torch_peer.py. Tensors are built once, so that
only saving and loading is timed.
"""
import json
import os
import sys
import time


def drop_from_cache(path):
    """Forgets a file's cached pages. It must have been synced."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def sync(path):
    fd = os.open(path, os.O_RDWR)
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


def load(peer, model, ask):
    if ask.get("cold"):
        sync(ask["path"])
        drop_from_cache(ask["path"])
    begun = time.perf_counter()
    loaded = peer.load(model, ask["path"], ask.get("names"))
    seconds = time.perf_counter() - begun
    del loaded
    return seconds


def serve(peer):
    print(json.dumps({"peer": peer.NAME, "version": peer.VERSION}), flush=True)
    model = None
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["do"] == "build":
                model = None
                model = peer.build(ask["table"])
                answer = {}
            elif ask["do"] == "save":
                answer = {"s": save(peer, model, ask)}
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
