#!/usr/bin/python3
"""The saves of train_digits done with torch.save: how long would they have held training up?

Reads the report of `train_digits train`; writes tensors of the same shapes as many times.
"""
import argparse
import json
import os
import time

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", required=True, help="what `train_digits train` wrote")
    parser.add_argument("--into", required=True, help="directory for the files")
    arguments = parser.parse_args()
    with open(arguments.report) as file:
        report = json.load(file)
    model = {name: torch.rand(*shape) for name, shape in report["shapes"].items()}
    torch.save(model, os.path.join(arguments.into, "warm.pt"))

    held_up_s = 0.0
    for i in range(report["saves"]):
        begun = time.perf_counter()
        torch.save(model, os.path.join(arguments.into, f"{i}.pt"))
        held_up_s += time.perf_counter() - begun

    held_up_ms = 1000 * held_up_s
    print(
        f"the same {report['saves']} saves with torch.save (PyTorch {torch.__version__}, not synced"
        f" to disk): training held up {held_up_ms:.2f} ms,"
        f" {100 * held_up_ms / report['training_ms']:.3f} % of its time,"
        f" {held_up_ms / report['held_up_ms']:.1f} times as long as by Millrace"
    )


main()
