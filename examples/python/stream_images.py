"""Trains a small network on a folder of JPEG files with a window that is smaller than the folder.

    python3 examples/python/stream_images.py [--epochs 3] [--window 1MiB] [--folder DIRECTORY] [--address unix:/PATH]

The images are decoded when they are first read. A node that has `data.capacity` keeps as many of them
as the window holds, those that the order of the training needs next; the others are read from the
folder again. The training stops in the middle of an epoch and goes on at the very sample, and each
sample comes once.
"""

import argparse
import pathlib
import tempfile

import numpy as np
import torch
from PIL import Image

import millrace as mr

SIDE = 64
CLASSES = ("bars", "columns", "rings")

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--epochs", type=int, default=3)
options.add_argument("--images", type=int, default=120, help="of each class")
options.add_argument("--window", default="1MiB", help="memory for decoded images")
options.add_argument("--name", default="python/images", help="of the working set")
options.add_argument("--folder", help="for the images (default: a new one, which goes at the end)")
options.add_argument("--address", help="of a node (default: MILLRACE_ADDRESS, or the configuration)")
args = options.parse_args()


def draw(kind, random):
    """Returns an image of stripes or rings, of any colour, place and width."""
    y, x = np.mgrid[0 : 2 * SIDE, 0 : 2 * SIDE] - random.uniform(0, 2 * SIDE, (2, 1, 1))
    along = {"bars": y, "columns": x, "rings": np.hypot(x, y)}[kind]
    lines = np.sin(along / random.uniform(3, 9)) > 0
    colours = random.uniform(0, 255, (2, 3))
    pixels = colours[lines.astype(int)] + random.normal(0, 8, (2 * SIDE, 2 * SIDE, 3))
    return Image.fromarray(pixels.clip(0, 255).astype("uint8"))


def make_folder(root):
    """Writes the images, once: a folder for each class, as `ImageFolder` has it."""
    random = np.random.default_rng(5)
    for kind in CLASSES:
        (root / kind).mkdir(parents=True, exist_ok=True)
        for i in range(args.images):
            image = draw(kind, random)
            if not (path := root / kind / f"{i:04}.jpg").exists():
                image.save(path, quality=90)


def make_loader(client, root):
    images = client.working_set(args.name).preload(
        root,
        fields=["x", "label"],
        labels="folders",
        decode={"x": f"rgb:{SIDE}"},
        window=args.window,
        while_used=True,
    )
    return mr.data.Loader(images, batch_size=16, seed=11)


def normal(pixels):
    """Returns the images in gray, [n, 1, height, width], each with a mean of 0 and a deviation of 1."""
    gray = pixels.float().mean(3).unsqueeze(1)
    return (gray - gray.mean((2, 3), keepdim=True)) / (gray.std((2, 3), keepdim=True) + 1)


def train(client, root):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 5), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(3),
        torch.nn.Flatten(), torch.nn.Linear(8 * 9, len(CLASSES)),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = make_loader(client, root)
    stop_at = len(loader) // 2
    for epoch in range(args.epochs):
        seen, right = [], 0
        while True:
            for batch in loader:
                optimizer.zero_grad()
                answers = model(normal(batch.x))
                torch.nn.functional.cross_entropy(answers, batch.label).backward()
                optimizer.step()
                seen += batch.ids.tolist()
                right += int((answers.argmax(1) == batch.label).sum())
                batch.release()
                if epoch == 1 and len(seen) == stop_at * 16:
                    break
            else:
                break
            # As a job does that was ended here, and is started again.
            state = loader.state_dict()
            loader = make_loader(client, root)
            loader.load_state_dict(state)
            print(f"goes on after {len(seen)} samples of epoch {epoch}")
        once = sorted(seen) == list(range(loader.info.samples))
        print(f"epoch {epoch}: {right / len(seen):.0%} right, each sample once: {once}")
    print(f"{loader.info.size_bytes} bytes of samples, a window of {args.window}")


with tempfile.TemporaryDirectory() as made:
    root = pathlib.Path(args.folder or made)
    make_folder(root)
    with mr.connect(args.address) as connected:
        train(connected, root)
