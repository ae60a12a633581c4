"""A training that copies its tensors and lets a thread call torch.save."""
import peer
import training


def load_peer():
    import torch

    class TrainingTorch:
        NAME = "training_torch"
        VERSION = torch.__version__

        @staticmethod
        def save(model, path):
            copies = {name: tensor.clone() for name, tensor in model.items()}
            return training.in_a_thread(lambda: torch.save(copies, path))

        @staticmethod
        def build_training(table, iteration_s, cores):
            return training.Training(table, iteration_s, cores, TrainingTorch.save, lambda thread: thread.join())

    return TrainingTorch


if __name__ == "__main__":
    peer.run(load_peer)
