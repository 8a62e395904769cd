"""Harvests that are killed: run as a program, `killed_harvest.py FOLDER SEED`, it prints how many were.

The process with the model forks; each child harvests and is killed (SIGKILL) after a random time, again and again over
what the last one left, until one comes to its end.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

import torch

torch.set_num_threads(1)  # before anything runs: threads do not survive a fork

from small_models import small, some_texts  # noqa: E402

from mechanome.activations import harvest  # noqa: E402

SETTINGS = {"packing": "sequence", "shard_rows": 300, "quiet": True, "compute": "model"}


def run(folder: Path) -> None:
    harvesting = import_module("mechanome.activations.harvest")
    harvesting._CHUNK, harvesting._LEAST = 1, 150  # many chunks
    harvest(small(), some_texts(150), ("resid_post.0", "z.1"), folder, **SETTINGS)


def child(folder: Path) -> int:
    pid = os.fork()
    if not pid:
        run(folder)
        os._exit(0)
    return pid


def main(folder: Path, seed: int) -> None:
    rng, kills = random.Random(seed), 0
    small()
    begun = time.monotonic()
    assert os.waitpid(child(folder / "whole"), 0)[1] == 0
    whole = time.monotonic() - begun
    for k in range(4):
        latest = 0.8  # the first one does not come to its end, as a rule
        while True:
            pid = child(folder / f"killed{k}")
            time.sleep(rng.uniform(0.1, latest) * whole)
            latest = 1.3
            os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, 0)[1] == 0:
                break
            kills += 1
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
