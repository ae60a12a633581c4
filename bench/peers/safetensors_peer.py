"""safetensors, tensors of PyTorch."""
import peer


def load_peer():
    import safetensors
    import torch
    from safetensors.torch import load_file, save_file

    class Safetensors:
        NAME = "safetensors"
        VERSION = safetensors.__version__

        build = staticmethod(peer.random_tensors)

        @staticmethod
        def save(model, path):
            save_file(model, path)

        @staticmethod
        def restore(model, path):
            peer.copy_into(model, load_file(path))

    return Safetensors


if __name__ == "__main__":
    peer.run(load_peer)
