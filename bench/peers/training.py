"""A training in PyTorch that computes on every core and saves in the background; for the peers that save so."""
import threading
import time

WIDTH = 512


class Training:
    """`save(model, path)` returns what `wait(it)` waits for. It gets tensors that nobody changes any more."""

    def __init__(self, table, iteration_s, cores, save, wait):
        import torch

        torch.set_num_threads(cores)
        self.save, self.wait = save, wait
        self.model = {name: torch.zeros(shape, dtype=torch.float32) for name, shape in table}
        self.a = torch.rand(WIDTH, WIDTH)
        self.products = 1
        self.iterate()
        for _ in range(2):
            updating = seconds_of(self.update)
            whole = seconds_of(self.iterate)
            one = max(whole - updating, whole / 4) / self.products
            self.products = max(round(max(iteration_s - updating, iteration_s / 4) / one), 1)

    def forward_and_backward(self):
        b = self.a
        # Elements stay near one half: products of tiny numbers would take a hundred times as long.
        for _ in range(self.products):
            b = (self.a @ b) * (2 / WIDTH)

    def update(self):
        for tensor in self.model.values():
            tensor.sub_(1e-6)

    def iterate(self):
        self.forward_and_backward()
        self.update()

    def train(self, iterations, distance, path):
        """Returns the seconds of a loop with a save in every so many iterations (0: none), the last one included."""
        begun = time.perf_counter()
        saving = None
        for i in range(iterations):
            if distance > 0 and i % distance == 0:
                if saving is not None:
                    self.wait(saving)
                saving = self.save(self.model, path)
            self.iterate()
        if saving is not None:
            self.wait(saving)
        return time.perf_counter() - begun


def seconds_of(work):
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread
