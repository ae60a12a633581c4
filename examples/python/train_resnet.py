"""Trains torchvision's ResNet-18 on generated images, and saves it at every iteration.

    python3 examples/python/train_resnet.py [--steps 20] [--name resnet18] [--small] [--address unix:/PATH]

Three lines are Millrace's. Started again, it goes on from the newest checkpoint, to the same losses as
if it had not been ended. With --small, or without torchvision, it trains a small network of its own.
"""

import argparse
import time

import torch

import millrace as mr

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--steps", type=int, default=20)
options.add_argument("--name", default="resnet18")
options.add_argument("--small", action="store_true", help="a small network instead of ResNet-18")
options.add_argument("--address", default=None, help="of a node (MILLRACE_ADDRESS, or the default)")
args = options.parse_args()

torch.manual_seed(1)
try:
    import torchvision
except ImportError:
    args.small = True
if not args.small:
    model = torchvision.models.resnet18(num_classes=10)
else:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(256, 10),
    )  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)


def images():
    """Squares whose brightness is their class."""
    labels = torch.randint(0, 10, (16,))
    return labels.view(-1, 1, 1, 1) / 10 + 0.1 * torch.randn(16, 3, 64, 64), labels


client = mr.connect(args.address)
ckpt = mr.torch.Checkpointer(model, optimizer, scheduler, name=args.name, client=client)
start = ckpt.restore() or 0
print(f"goes on after step {start}" if start else "begins anew")
training = saving = 0.0
for step in range(start, args.steps):
    began = time.perf_counter()
    x, labels = images()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
    computed = time.perf_counter()
    ckpt.save(step + 1)
    saved = time.perf_counter()
    training, saving = training + computed - began, saving + saved - computed
    print(f"step {step + 1}: loss {loss.item():.6f}")
ckpt.close()
if args.steps > start:
    each = 1e3 / (args.steps - start)
    print(f"an iteration took {training * each:.1f} ms, save() {saving * each * 1e3:.0f} us of it")
