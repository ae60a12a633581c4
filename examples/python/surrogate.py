"""Trains a surrogate of a simulation, on arrays that arrive while the simulation goes on.

    python3 examples/python/surrogate.py [--members 3] [--steps 200] [--group default] [--address unix:/PATH]

Each member of an ensemble is a process that solves the heat equation in one dimension for a
temperature of its own at the border. It stores its field after every step, and does not wait for
anybody. The trainer waits for newer versions, learns the step of the solver from them, and stores
its weights. The members load the newest weights, in place, and compare them with their own step.
"""

import argparse
import multiprocessing
import time

import numpy as np

import millrace as mr

POINTS = 32
SHAPES = {"hidden.weight": (64, 5), "hidden.bias": (64,), "out.weight": (1, 64), "out.bias": (1,)}


def step_of_solver(u):
    new = u.copy()
    new[1:-1] += 0.25 * (u[:-2] - 2 * u[1:-1] + u[2:])
    return new


def neighbourhoods(u):
    """The five points around each, whose middle one the surrogate predicts the change of."""
    return np.lib.stride_tricks.sliding_window_view(u, 5).astype("float32")


def predicted(weights, u):
    hidden = np.tanh(neighbourhoods(u) @ weights["hidden.weight"].T + weights["hidden.bias"])
    return u[2:-2] + (hidden @ weights["out.weight"].T + weights["out.bias"])[:, 0]


def simulate(member, steps, group, address):
    repo = mr.connect(address).repository(group)
    u = np.zeros(POINTS)
    u[0], u[-1] = 1.0, (member + 1) / 4
    pair = {"before": np.empty(POINTS), "after": np.empty(POINTS)}
    weights = {name: np.zeros(shape, "float32") for name, shape in SHAPES.items()}
    known, error, storing = 0, float("nan"), None
    for step in range(steps):
        new = step_of_solver(u)
        if storing is not None:
            storing.result()  # of the step before: then the arrays may change
        pair["before"][:], pair["after"][:] = u, new
        storing = repo.store(f"surrogate/data/{member}", pair, metadata={"step": str(step)})
        try:
            version = repo.load_into("surrogate/weights", weights).result().version
            if version != known:
                known, error = version, float(np.abs(predicted(weights, u) - new[2:-2]).max())
        except mr.NotFound:
            pass  # the trainer has stored none yet
        u = new
        time.sleep(0.01)  # what a larger simulation would compute
    storing.result()
    repo.store(f"surrogate/error/{member}", {"error": np.array([error])}).result()


def surrogate(torch):
    torch.manual_seed(1)
    net = torch.nn.Sequential()
    net.add_module("hidden", torch.nn.Linear(5, 64))
    net.add_module("tanh", torch.nn.Tanh())
    net.add_module("out", torch.nn.Linear(64, 1))
    return net, torch.optim.Adam(net.parameters(), lr=5e-3)


def train(torch, net, optimizer, members, group, address, alive):
    repo = mr.connect(address).repository(group)
    seen = dict.fromkeys(range(members), 0)
    waiting = {}
    kept_x, kept_y, batches, losses = [], [], 0, []
    while alive():
        for member, version in seen.items():
            if member not in waiting:
                waiting[member] = repo.newer(f"surrogate/data/{member}", version, timeout=600)
        for member, future in list(waiting.items()):
            if not future.done():
                continue
            seen[member] = waiting.pop(member).result()
            try:
                pair = repo.load(f"surrogate/data/{member}", framework="np").result()
            except mr.NotFound:
                continue
            kept_x.append(neighbourhoods(pair["before"]))
            kept_y.append((pair["after"] - pair["before"])[2:-2, None].astype("float32"))
        if not kept_x:
            time.sleep(0.002)
            continue
        chosen = np.random.default_rng(batches).integers(len(kept_x), size=8)
        x = torch.from_numpy(np.concatenate([kept_x[i] for i in chosen]))
        y = torch.from_numpy(np.concatenate([kept_y[i] for i in chosen]))
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        batches += 1
        if batches % 20 == 0:
            repo.store("surrogate/weights", net.state_dict()).result()
    for future in waiting.values():
        future.cancel()
    return batches, len(kept_x), losses


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--members", type=int, default=3, help="of the ensemble")
    options.add_argument("--steps", type=int, default=200, help="of each member")
    options.add_argument("--address", default=None, help="of a node (MILLRACE_ADDRESS, or the default)")
    options.add_argument("--group", default="default", help="of providers that keep models")
    args = options.parse_args()
    # Here, since members have no use for it, and before they begin: PyTorch imports much of itself
    # with the first optimizer.
    import torch

    net, optimizer = surrogate(torch)

    # Each process connects for itself.
    processes = multiprocessing.get_context("spawn")
    ensemble = [
        processes.Process(target=simulate, args=(member, args.steps, args.group, args.address))
        for member in range(args.members)
    ]
    for member in ensemble:
        member.start()
    batches, arrived, losses = train(
        torch, net, optimizer, args.members, args.group, args.address,
        lambda: any(m.is_alive() for m in ensemble),
    )
    for member in ensemble:
        member.join()
        assert member.exitcode == 0, f"a member ended with {member.exitcode}"
    first, last = np.mean(losses[:20]), np.mean(losses[-20:])
    print(f"{arrived} of {args.members * args.steps} fields seen, {batches} batches")
    print(f"mean squared error of the change in a step: {first:.2e} at first, {last:.2e} at last")
    repo = mr.connect(args.address).repository(args.group)
    for member in range(args.members):
        error = repo.load(f"surrogate/error/{member}", framework="np").result()["error"][0]
        print(f"member {member}: its last weights were off by {error:.4f} at most")


if __name__ == "__main__":
    main()
