import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mechanome.core import BadInput, Batches, CheckpointFolder, NotFinite, Parts, ShapeMismatch, fit


class Trainee:
    """A line fitted to a line, small enough to read."""

    def __init__(self, width=1):
        self.model = torch.nn.Linear(width, 1)
        torch.nn.init.zeros_(self.model.weight)
        torch.nn.init.zeros_(self.model.bias)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.state = Parts(model=self.model, optimizer=self.optimizer)
        self.x = torch.linspace(-1, 1, 16)[:, None].expand(-1, width)
        self.seen = []

    def step(self, rows):
        self.seen.append(rows)
        rows = rows if isinstance(rows, torch.Tensor) else slice(None)
        loss = (self.model(self.x[rows]) - 2 * self.x[rows, :1] - 1).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss}


def test_it_fits_and_reports():
    trainee, rows = Trainee(), []
    done = fit(trainee.step, trainee.state, steps=200, on_metrics=lambda step, m: rows.append((step, m)), log_every=50)
    assert trainee.model.weight.item() == pytest.approx(2, abs=0.05)
    assert (done.steps, done.resumed_from, len(trainee.seen)) == (200, 0, 200)
    assert [step for step, _ in rows] == [50, 100, 150, 200]
    assert rows[-1][1] == done.metrics
    assert trainee.seen[:3] == [0, 1, 2]


def test_killed_at_any_moment_it_ends_in_the_same_bits(tmp_path):
    script = Path(__file__).with_name("killed_fits.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr
    (first, killed, code, equal), (second, inside, clean, identical) = map(str.split, ran.stdout.splitlines())
    assert (first, code, equal) == ("random", "0", "same"), ran.stdout + ran.stderr
    assert (second, clean, identical) == ("inside", "0", "same"), ran.stdout + ran.stderr
    assert int(killed) >= 1
    assert int(inside) == 11


@pytest.mark.parametrize("data", [None, "batches"])
def test_two_halves_are_one_whole(tmp_path, data):
    def run(folder, steps):
        trainee = Trainee()
        stream = Batches(16, 5, seed=2) if data else None
        result = fit(trainee.step, trainee.state, stream, steps=steps, checkpoint_dir=folder, every=4)
        return trainee, result

    whole, _ = run(tmp_path / "whole", 17)
    run(tmp_path / "halves", 7)
    half, result = run(tmp_path / "halves", 17)
    assert (result.resumed_from, result.steps) == (7, 17)
    assert torch.equal(half.model.weight, whole.model.weight)
    again, result = run(tmp_path / "halves", 17)
    assert (again.seen, result.metrics, result.steps) == ([], {}, 17)
    assert torch.equal(again.model.weight, whole.model.weight)


def test_the_end_of_the_data_ends_the_fit(tmp_path):
    trainee = Trainee()
    assert fit(trainee.step, trainee.state, Batches(16, 5, epochs=2), checkpoint_dir=tmp_path, every=3).steps == 8
    assert CheckpointFolder(tmp_path).steps() == [6, 8]
    assert fit(trainee.step, trainee.state, [torch.arange(3)] * 4).steps == 4


def test_the_callers_generators_are_untouched():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    fit(lambda done: {"noise": torch.rand(())}, Parts(), steps=5, seed=9)
    assert torch.equal(torch.rand(3), expected)


def test_seed_decides_the_noise():
    def noise(seed):
        return fit(lambda done: {"noise": torch.rand(())}, Parts(), steps=5, seed=seed).metrics

    assert noise(1) == noise(1) != noise(2)


def test_nan_names_the_step_and_keeps_the_checkpoint(tmp_path):
    trainee = Trainee()

    def step(done):
        metrics = trainee.step(done)
        return {"loss": metrics["loss"] * (float("nan") if done == 6 else 1)}

    with pytest.raises(NotFinite, match=r"step 7: loss is nan.*checkpoint of step 4"):
        fit(step, trainee.state, steps=10, checkpoint_dir=tmp_path, every=4)
    assert CheckpointFolder(tmp_path).steps() == [4]


def test_weights_that_turn_nan_do_not_reach_a_checkpoint(tmp_path):
    trainee = Trainee()

    def step(done):
        metrics = trainee.step(done)
        if done == 7:
            trainee.model.weight.data.fill_(float("nan"))
        return metrics

    with pytest.raises(NotFinite, match="state/state/model/weight after step 8"):
        fit(step, trainee.state, steps=20, checkpoint_dir=tmp_path, every=4)
    assert CheckpointFolder(tmp_path).steps() == [4]


def test_another_fit_is_not_resumed(tmp_path):
    def run(trainee=None, data=None, **options):
        trainee = trainee or Trainee()
        return fit(trainee.step, trainee.state, data, steps=4, checkpoint_dir=tmp_path, settings=options)

    run(lr=0.1)
    with pytest.raises(BadInput, match=r"lr was 0.1, now 0.2"):
        run(lr=0.2)
    with pytest.raises(BadInput, match="other data"):
        run(data=Batches(16, 4), lr=0.1)
    with pytest.raises(ShapeMismatch, match="size mismatch"):
        run(Trainee(width=2), lr=0.1)
    trainee = Trainee()
    with pytest.raises(BadInput, match="parts"):
        fit(trainee.step, Parts(model=trainee.model), steps=4, checkpoint_dir=tmp_path, settings={"lr": 0.1})
    with pytest.raises(BadInput, match="already holds"):
        fit(trainee.step, trainee.state, steps=4, checkpoint_dir=tmp_path, resume=False)


@pytest.mark.parametrize(
    ("match", "options"),
    [
        ("neither data nor steps", {}),
        ("every=0", {"steps": 1, "every": 0}),
        ("cannot say where it is", {"data": [1, 2], "checkpoint_dir": "unused"}),
    ],
)
def test_requests_that_cannot_be_kept(match, options):
    with pytest.raises(BadInput, match=match):
        fit(lambda batch: {}, Parts(), **options)


def test_one_fit_a_folder(tmp_path):
    def inner(done):
        fit(lambda again: {}, Parts(), steps=1, checkpoint_dir=tmp_path)
        return {}

    with pytest.raises(BadInput, match="another process"):
        fit(inner, Parts(), steps=1, checkpoint_dir=tmp_path)
