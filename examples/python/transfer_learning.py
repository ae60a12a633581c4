"""Trains a parent, and a child that takes from it the layers that both have.

    python3 examples/python/transfer_learning.py [--small] [--steps 30] [--group default] [--address unix:/PATH]

The parent is stored with its architecture. The child has another head, and other names for its
modules; what it shares with the parent is found by the identities of their layers. Only these
tensors move, from the provider straight into the child.
"""

import argparse

import torch

import millrace as mr

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--small", action="store_true", help="small networks instead of ResNet-18")
options.add_argument("--steps", type=int, default=30, help="of each training")
options.add_argument("--address", default=None, help="of a node (MILLRACE_ADDRESS, or the default)")
options.add_argument("--group", default="default", help="of providers that keep models")
args = options.parse_args()

torch.manual_seed(1)
try:
    import torchvision
except ImportError:
    args.small = True


def network(classes):
    if not args.small:
        return torchvision.models.resnet18(num_classes=classes)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(256, classes),
    )  # fmt: skip


def images(classes, count=16):
    """Squares whose brightness is their class."""
    labels = torch.randint(0, classes, (count,))
    return labels.view(-1, 1, 1, 1) / classes + 0.1 * torch.randn(count, 3, 32, 32), labels


def train(model, parameters, classes, steps):
    """Returns the mean loss of the last five steps."""
    model.train()
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    losses = []
    for _ in range(steps):
        x, labels = images(classes)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-5:]) / 5


class Child(torch.nn.Module):
    """The parent's network under other names, with a head for fewer classes."""

    def __init__(self):
        super().__init__()
        self.backbone = network(classes=4)

    def forward(self, x):
        return self.backbone(x)


repo = mr.connect(args.address).repository(args.group)

parent = network(classes=10)
loss = train(parent, parent.parameters(), 10, args.steps)
graph = mr.torch.graph(parent)
stored = repo.store("transfer/parent", parent.state_dict(), graph=graph).result()
print(f"parent: loss {loss:.3f}, {len(graph)} layers, {stored.size_bytes} bytes stored")

child = Child()
shared = mr.torch.graph(child).shared(repo.describe("transfer/parent").result().graph)
state = child.state_dict()
loaded = repo.load_into(
    "transfer/parent", {there: state[here] for here, there in shared.items()}
).result()
own = [name for name in state if name not in shared]
print(f"child: {len(shared)} tensors taken, {loaded.size_bytes} bytes; its own: {', '.join(own)}")

# What was taken stays as it is; the head alone is trained.
head = [p for name, p in child.named_parameters() if name not in shared]
loss = train(child, head, 4, args.steps)
repo.store("transfer/child", child.state_dict(), graph=mr.torch.graph(child)).result()
print(f"child: loss {loss:.3f} after training {sum(p.numel() for p in head)} parameters")
