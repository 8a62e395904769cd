"""Fits a tiny network in child processes that are killed, and prints whether the outcome is that of an unbroken fit.

Run as a script, so that torch is loaded once and each child is forked from a process that never used autograd.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from mechanome.core import Batches, Parts, append_jsonl, fit, read_jsonl, read_tensors, silence, write_tensors

STEPS, EVERY = 60, 4


def train(folder: Path, pause: float = 0.0) -> None:
    """Fit, with noise from every generator, dropout, a schedule and shuffled data; write the final weights."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(50, 4), torch.randn(50, 2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS)

    def step(rows: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(pause)
        noise = float(np.random.normal()) + random.gauss(0, 1)
        loss = (model(inputs[rows] + 0.01 * noise) - targets[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    with silence():
        fit(
            step,
            Parts(model=model, optimizer=optimizer, schedule=schedule),
            Batches(50, 7, seed=3),
            steps=STEPS,
            checkpoint_dir=folder / "checkpoints",
            every=EVERY,
            seed=5,
            on_metrics=lambda done, metrics: append_jsonl(folder / "metrics.jsonl", {"step": done, **metrics}),
        )
    write_tensors(folder / "final", model.state_dict(), format="weights")


def child(folder: Path, pause: float = 0.0, kill_at_call: int = 0) -> int:
    """Fork a fit; ``kill_at_call`` makes it kill itself at that call of fsync or rename. Returns its process id."""
    if pid := os.fork():
        return pid
    calls = 0

    def deadly(call):
        def wrapped(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == kill_at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return wrapped

    if kill_at_call:
        os.fsync, Path.replace, Path.unlink = deadly(os.fsync), deadly(Path.replace), deadly(Path.unlink)
    try:
        train(folder, pause)
        os._exit(0)
    except BaseException as error:
        print("child:", repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def outcome(base: Path, name: str) -> str:
    """``same``, or what differs from the unbroken fit: the bits of the weights, a logged step, a file left behind."""
    weights = [read_tensors(base / n / "final", format="weights").tensors for n in ("unbroken", name)]
    rows = [{row["step"]: row for row in read_jsonl(base / n / "metrics.jsonl")} for n in ("unbroken", name)]
    wrong = {
        "weights": any(not torch.equal(weights[0][key], weights[1][key]) for key in weights[0]),
        "rows": rows[0] != rows[1],
        "leftovers": any((base / name / "checkpoints").glob(".*.tmp")),
    }
    return "+".join(key for key, found in wrong.items() if found) or "same"


def main(base: Path) -> None:
    random.seed(int(os.environ.get("KILL_SEED", "0")))
    torch.optim.AdamW([torch.zeros(1)])  # Loads what the children would otherwise each load.
    assert ended(child(base / "unbroken")) == 0

    killed = 0
    for attempt in range(50):
        pid = child(base / "random", pause=0.004)
        if attempt < 6:
            time.sleep(random.uniform(0.01, 0.06))
            os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        killed += code == -signal.SIGKILL
        if code != -signal.SIGKILL:
            break
    print("random", killed, code, outcome(base, "random"))

    killed = 0
    for call in range(1, 12):
        code = ended(child(base / "inside", kill_at_call=call))
        killed += code == -signal.SIGKILL
    code = ended(child(base / "inside"))
    print("inside", killed, code, outcome(base, "inside"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
