"""torch.save and torch.load of a dictionary of tensors."""
import peer


def load_peer():
    import torch

    class Torch:
        NAME = "torch"
        VERSION = torch.__version__

        @staticmethod
        def build(table):
            return {name: torch.rand(shape, dtype=torch.float32) for name, shape in table}

        @staticmethod
        def save(model, path):
            torch.save(model, path)

        @staticmethod
        def load(model, path, names):
            loaded = torch.load(path)
            return {name: loaded[name] for name in names} if names else loaded

        @staticmethod
        def restore(model, path):
            """Into the tensors that are there, as `load_state_dict` does."""
            loaded = torch.load(path)
            for name, tensor in model.items():
                tensor.copy_(loaded[name])

    return Torch


if __name__ == "__main__":
    peer.run(load_peer)
