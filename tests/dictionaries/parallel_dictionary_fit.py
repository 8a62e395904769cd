"""Fits dictionaries with one process or several, and saves what came out; started by `torchrun`, or alone."""

import sys

import torch
from planted_streams import planted

from mechanome.core.tensor_files import write_tensors
from mechanome.dictionaries import BatchTopK, Gated, JumpReLU, PolySAE, TopK, fit

RECIPES = [
    TopK(32, k=2, dead_after=500),
    BatchTopK(32, k=2, dead_after=500),
    JumpReLU(32, l0=2.0, penalty="l0"),
    Gated(32, l1=2.0),
    PolySAE(32, k=2, ranks=(12, 6, 4), dead_after=500),
]


def main(target, parallel):
    torch.set_num_threads(1)
    fits = fit(RECIPES, planted(batch=65), steps=20, lr=1e-3, clip=1.0, parallel=parallel, log_every=5, quiet=True)
    tensors = {
        f"{fitted.report['name']}/{name}": tensor
        for fitted in fits
        for name, tensor in fitted.dictionary.state_dict().items()
    }
    losses = [record["loss"] for fitted in fits for record in fitted.history]
    rank = torch.distributed.get_rank() if parallel else "alone"
    write_tensors(f"{target}/{rank}.safetensors", {**tensors, "losses": torch.tensor(losses)}, format="fits")
    if parallel:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "parallel")
