"""Fits dictionaries, kills the process at a moment asked for, or goes on to the end; prints a digest of the result."""

import hashlib
import os
import signal
import sys

import torch
from planted_streams import planted

from mechanome.dictionaries import BatchTopK, JumpReLU, PolySAE, fit

RECIPES = [
    BatchTopK(32, k=2, dead_after=2000, k_start=6),
    JumpReLU(32, l0=2.0),
    PolySAE(32, k=2, ranks=(12, 6, 4), dead_after=2000),
]


def main(folder, kill_at):
    torch.set_num_threads(1)

    def watch(step, metrics):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    fits = fit(
        RECIPES,
        planted(batch=64),
        steps=150,
        lr=3e-3,
        checkpoint_dir=folder,
        every=20,
        revive_every=30,
        log_every=1,
        on_metrics=watch,
        quiet=True,
    )
    digest = hashlib.sha256()
    for fitted in fits:
        for name, tensor in sorted(fitted.dictionary.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        losses = [[record[name] for name in ("step", "loss", "fvu", "l0", "dead")] for record in fitted.history]
        digest.update(repr(losses).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
