"""A training that saves with torch.distributed.checkpoint.async_save, one process."""
import peer
import training


def load_peer():
    import torch

    try:
        from torch.distributed.checkpoint import async_save
    except ImportError as why:
        raise ImportError(f"torch.distributed.checkpoint.async_save: {why}") from why
    import torch.distributed as distributed

    class TrainingDcp:
        NAME = "training_dcp"
        VERSION = torch.__version__

        @staticmethod
        def save(model, path):
            return async_save(model, checkpoint_id=path)

        @staticmethod
        def build_training(table, iteration_s, cores):
            if not distributed.is_initialized():
                distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
            return training.Training(table, iteration_s, cores, TrainingDcp.save, lambda saving: saving.result())

    return TrainingDcp


if __name__ == "__main__":
    peer.run(load_peer)
