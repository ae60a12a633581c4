"""Images by torchvision's ImageFolder, one after the other by one thread.

`build` gets a table with the path of a directory of images. `measure("224", n)` returns the seconds in which n images
are read, decoded, resized so that the shorter side has 224 pixels, and cropped to 224 x 224, as tensors of bytes;
`measure("full", n)` those without the resizing. It goes on with the images where the last measure ended.
"""
import itertools
import os
import time

import peer


def load_peer():
    import torch
    import torchvision
    from torchvision import transforms

    torch.set_num_threads(1)
    ways = {
        "224": [transforms.Resize(224), transforms.CenterCrop(224), transforms.PILToTensor()],
        "full": [transforms.PILToTensor()],
    }

    class Images:
        def __init__(self, path):
            self.ways = {}
            for name, way in ways.items():
                folder = torchvision.datasets.ImageFolder(os.path.dirname(path), transforms.Compose(way))
                self.ways[name] = (folder, itertools.cycle(range(len(folder))))

        def read(self, what, count):
            folder, order = self.ways[what]
            begun = time.perf_counter()
            for i in itertools.islice(order, count):
                folder[i]
            return time.perf_counter() - begun

    class ImageFolder:
        NAME = "ImageFolder"
        VERSION = f"torchvision {torchvision.__version__}"

        @staticmethod
        def build(table):
            return Images(table[0][0])

        @staticmethod
        def measure(images, what, count):
            return images.read(what, count)

    return ImageFolder


if __name__ == "__main__":
    peer.run(load_peer)
