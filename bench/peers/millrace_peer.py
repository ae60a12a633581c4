"""The package millrace: models stored and loaded where a path is a name, and what single calls take.

MILLRACE_ADDRESS of the environment names the service.
"""
import os
import signal
import threading
import time

import peer


def load_peer():
    import torch

    import millrace as mr

    client = mr.connect()
    repo = client.repository("default")

    class Millrace:
        NAME = "millrace"
        VERSION = mr.__version__

        build = staticmethod(peer.random_tensors)

        @staticmethod
        def save(model, path):
            repo.store(path, model).result()

        @staticmethod
        def load(model, path, names):
            return repo.load(path, names).result()

        @staticmethod
        def restore(model, path):
            repo.load_into(path, model).result()

        @staticmethod
        def measure(model, what, count):
            if what in ("store", "load"):
                return mean_of(repo, model, what, count)
            return {"save": save_call, "interrupt": interrupt, "train": train}[what](mr, client, torch, count)

    return Millrace


def mean_of(repo, model, what, count):
    """The mean of so many stores or loads of the model, one after the other."""
    begun = time.perf_counter()
    for _ in range(count):
        (repo.store if what == "store" else repo.load_into)("model", model).result()
    return (time.perf_counter() - begun) / count


checkpointers = {}


def save_call(mr, client, torch, count):
    """Seconds of one `save` of a module with so many tensors, which were read before. Negative: without generators."""
    if count not in checkpointers:
        module = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(16)) for _ in range(abs(count))])
        checkpointer = mr.torch.Checkpointer(module, name=f"call/{count}", client=client, generators=count > 0)
        checkpointer.save(0).durable.result()
        checkpointers[count] = checkpointer, module, [0]
    checkpointer, _, step = checkpointers[count]
    step[0] += 1
    checkpointer.fence()
    begun = time.perf_counter()
    saved = checkpointer.save(step[0])
    seconds = time.perf_counter() - begun
    saved.durable.result()
    return seconds


def interrupt(mr, client, torch, count):
    """Seconds from a signal until `result` has raised KeyboardInterrupt."""
    # Programs that run in the background may have been started without it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sent = [0.0]

    def send():
        time.sleep(0.02)
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    future = client.repository("default").newer("never", timeout=600)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        future.result()
    except KeyboardInterrupt:
        seconds = time.perf_counter() - sent[0]
    thread.join()
    future.cancel()
    return seconds


trainings = {}


def train(mr, client, torch, count):
    """Seconds of a loop of torchvision's ResNet50. 1: with a save at each iteration; 2: torch.save in a thread; 0: none."""
    import torchvision

    if not trainings:
        model = torchvision.models.resnet50()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        images, labels = torch.rand(8, 3, 64, 64), torch.randint(0, 1000, (8,))
        trainings[0] = model, optimizer, images, labels
        iterate(torch, *trainings[0])
        trainings[1] = mr.torch.Checkpointer(model, optimizer, name="resnet50", client=client), [0]
    model, optimizer, images, labels = trainings[0]
    checkpointer, step = trainings[1]
    saving = None
    begun = time.perf_counter()
    for _ in range(8):
        iterate(torch, model, optimizer, images, labels)
        if count == 1:
            step[0] += 1
            checkpointer.save(step[0])
        elif count == 2:
            if saving is not None:
                saving.join()
            state = {name: t.clone() for name, t in model.state_dict().items()}
            momentum = [s["momentum_buffer"].clone() for s in optimizer.state.values()]
            saving = threading.Thread(target=torch.save, args=((state, momentum), "/dev/shm/millrace-bench-resnet50"))
            saving.start()
    if count == 1:
        checkpointer.fence()
    elif saving is not None:
        saving.join()
        os.unlink("/dev/shm/millrace-bench-resnet50")
    return time.perf_counter() - begun


def iterate(torch, model, optimizer, images, labels):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()


if __name__ == "__main__":
    peer.run(load_peer)
