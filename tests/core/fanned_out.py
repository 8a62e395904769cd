"""What the tests of fanning out send to workers; run as a program, it sleeps in two of them until it is stopped."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from mechanome.core.cluster import fan_out
from mechanome.core.errors import NotFinite


def drawn(item):
    """The item, a draw, the number of threads; the first items take longest."""
    time.sleep(0.2 / (1 + item))
    return item, torch.rand(3), torch.get_num_threads()


def failing(item):
    if item > 1:
        time.sleep(0.5 if item == 2 else 0)
        raise NotFinite("the loss", f"it is NaN at {item}", "lower the rate") if item < 4 else ZeroDivisionError(item)
    return item


def killed(item):
    if item == 1:
        os._exit(1)
    return item


def sleeping(folder):
    (folder / str(os.getpid())).touch()
    time.sleep(600)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where tests run in the background
    with fan_out(sleeping, [Path(sys.argv[1])] * 2, cluster="local") as results:
        list(results)
