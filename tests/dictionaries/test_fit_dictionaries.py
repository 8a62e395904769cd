"""The fit: many at once, resumed, refused."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from planted_streams import WIDTH, D, planted, two_sites

from mechanome.activations import ArrayActivations
from mechanome.core.errors import BadInput, NotFinite, TooFewRows, UnknownName, UnknownSite
from mechanome.dictionaries import BatchTopK, Crosscoder, Dictionary, JumpReLU, PolySAE, ReLU, TopK, Transcoder, fit
from mechanome.dictionaries.crew import ALONE
from mechanome.dictionaries.fitting.moments import Moments
from mechanome.dictionaries.fitting.schedule import Schedule, learning_rate
from mechanome.dictionaries.fitting.trainee import Trainee
from mechanome.dictionaries.scores import Scorer

QUICK = {"steps": 30, "lr": 3e-3, "quiet": True}


def same(a, b):
    first, second = a.dictionary.state_dict(), b.dictionary.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def rows(n=400, d=8, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def test_killed_at_any_moment_it_ends_in_the_same_bits(tmp_path):
    script = Path(__file__).with_name("killed_dictionary_fit.py")

    def run(folder, kill_at):
        ran = subprocess.run(
            [sys.executable, script, tmp_path / folder, str(kill_at)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parent)},
            capture_output=True,
            text=True,
            timeout=240,
        )
        return ran.returncode, ran.stdout.strip(), ran.stderr

    code, whole, error = run("whole", 0)
    assert code == 0, error
    code, _, error = run("killed", random.randrange(21, 149))
    assert code == -9, error
    code, resumed, error = run("killed", 0)
    assert (code, resumed) == (0, whole), error


def test_two_halves_are_one_whole_also_of_clocks_and_thresholds(tmp_path):
    recipe = BatchTopK(WIDTH, k=2, dead_after=500)
    whole = fit(recipe, planted(64), **QUICK)

    class Stop(Exception):
        pass

    def stop(step, metrics):
        if step == 17:
            raise Stop

    with pytest.raises(Stop):
        fit(recipe, planted(64), **QUICK, checkpoint_dir=tmp_path, every=10, log_every=1, on_metrics=stop)
    resumed = fit(recipe, planted(64), **QUICK, checkpoint_dir=tmp_path, every=10, log_every=1)
    assert same(whole, resumed)
    assert [record["step"] for record in resumed.history] == list(range(1, 31))
    with pytest.raises(BadInput, match="another fit"):
        fit(BatchTopK(WIDTH, k=3), planted(64), **QUICK, checkpoint_dir=tmp_path)


def test_together_is_as_alone():
    recipes = [TopK(WIDTH, k=2), TopK(WIDTH, k=4), ReLU(WIDTH)]
    together = fit(recipes, planted(64), seed=[0, 1], **QUICK)
    assert [f.report["name"] for f in together] == [
        *("topk-32-k2-s0", "topk-32-k2-s1", "topk-32-k4-s0", "topk-32-k4-s1", "relu-32-s0", "relu-32-s1"),
    ]
    assert same(together[3], fit(recipes[1], planted(64), seed=1, **QUICK))
    assert not same(together[2], together[3])


def test_what_is_reported():
    told = []
    fitted = fit(
        TopK(WIDTH, k=2),
        planted(64),
        **QUICK,
        log_every=10,
        on_metrics=lambda step, metrics: told.append((step, metrics)),
    )
    assert [record["step"] for record in fitted.history] == [10, 20, 30]
    assert fitted.history[-1].keys() == {"step", "rows", "loss", "fvu", "l0", "dead", "rows_per_second"}
    assert [step for step, _ in told] == [10, 20, 30]
    assert told[-1][1]["loss"] == fitted.history[-1]["loss"]
    assert fitted.history[-1]["rows"] == 30 * 64
    assert fitted.dictionary.spec.provenance["rows"] == 30 * 64
    assert fitted.dictionary.spec.sites_in == ("planted",)
    assert not fitted.dictionary.training


def test_the_reported_fvu_is_that_of_the_rows():
    """With a rate of almost zero the dictionary stays as it began, and its FVU can be measured afterwards."""
    x = rows(512) + 5
    fitted = fit(TopK(16, k=3), ArrayActivations({"x": x}, batch=512), steps=1, lr=1e-12, log_every=1, quiet=True)
    missed = (x - fitted.dictionary(x)).square().sum() / (x - x.mean(0)).square().sum()
    assert fitted.history[0]["fvu"] == pytest.approx(missed.item(), rel=1e-4)
    assert fitted.history[0]["l0"] == 3


def test_the_length_of_a_fit():
    stream = ArrayActivations({"x": rows()}, batch=100, epochs=1)
    assert fit(TopK(16, k=2), stream, quiet=True).report["steps"] == 4
    assert fit(TopK(16, k=2), planted(64), tokens=640, quiet=True).report["steps"] == 10
    with pytest.raises(BadInput, match="how long"):
        fit(TopK(16, k=2), planted(64), quiet=True)
    with pytest.raises(BadInput, match="one of them"):
        fit(TopK(16, k=2), planted(64), steps=1, tokens=1, quiet=True)


def test_k_comes_down():
    recipe = TopK(WIDTH, k=2, k_start=10, anneal=0.5)
    active = [record["l0"] for record in fit(recipe, planted(64), **QUICK, log_every=1).history]
    assert active[0] > 8
    assert active == sorted(active, reverse=True)
    assert all(1.5 < l0 <= 2 for l0 in active[15:])


def test_dead_latents_start_again():
    def dead(**options):
        recipe = TopK(128, k=2, dead_after=2000, aux_weight=0.0)
        return fit(recipe, planted(64), steps=150, lr=5e-3, quiet=True, **options).history[-1]["dead"]

    assert dead() > 0.2
    assert dead(revive_every=20) < 0.5 * dead()


def test_only_the_auxiliary_loss_moves_the_encoder_of_dead_latents():
    """A latent that no row chooses has no gradient; the auxiliary loss gives it one."""

    def moved(weight):
        trainee = Trainee(
            TopK(64, k=2, dead_after=50, aux_weight=weight).build(D),
            TopK(64, k=2, dead_after=50, aux_weight=weight),
            *(1e-3, Schedule(100), Scorer(), ALONE),
        )
        trainee.model.b_enc.data[:8] = -100.0  # never among the largest
        x = planted(64).batch(0)[0]
        trainee.step(x, x)
        alive = trainee.last_fired == trainee.rows
        trainee.model.b_enc.data = torch.where(alive, 50.0, -100.0)
        trainee.model.b_enc.data[:8] = 1.0  # never chosen, but able to explain what is missed
        before = trainee.model.W_enc[:8].detach().clone()
        trainee.step(x, x)
        return (trainee.model.W_enc[:8] - before).abs().amax(1)

    torch.manual_seed(0)
    assert moved(0.0).max() == 0
    assert moved(1 / 32).min() > 1e-4


def test_unit_rows_stay_unit_and_u_orthonormal():
    fitted = fit(TopK(WIDTH, k=2), planted(64), **QUICK).dictionary
    torch.testing.assert_close(fitted.W_dec.norm(dim=1), torch.ones(WIDTH))
    for shared in (True, False):
        decoder = fit(PolySAE(WIDTH, k=2, ranks=(9, 5, 5), shared=shared), planted(64), **QUICK).dictionary.decoder
        for block in decoder.U.split(decoder.columns, dim=1):
            torch.testing.assert_close(block.T @ block, torch.eye(block.shape[1]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("select", ["bf16", "int8"])
def test_cheap_selection_fits_as_well(select):
    exact, cheap = (
        fit(TopK(WIDTH, k=2, dead_after=5000), planted(), steps=200, lr=5e-3, select=how, quiet=True)
        for how in ("exact", select)
    )
    missed = [sum(record["fvu"] for record in f.history[-5:]) for f in (exact, cheap)]
    assert missed[1] < 1.1 * missed[0]


@pytest.mark.parametrize("normalize", ["none", "center", "whiten"])
def test_normalization_travels_with_the_dictionary(tmp_path, normalize):
    x = rows(600) * torch.arange(1, 9) * 20 + 300
    fitted = fit(
        TopK(16, k=4),
        ArrayActivations({"resid_post.3": x}, batch=100),
        normalize=normalize,
        steps=200,
        lr=5e-3,
        quiet=True,
    )
    fitted.dictionary.save(tmp_path / "d")
    again = Dictionary.load(tmp_path / "d")
    assert again.norm.kind == normalize
    assert torch.equal(again(x), fitted.dictionary(x))
    if normalize != "none":
        assert (x - again(x)).square().sum() < 0.5 * (x - x.mean(0)).square().sum()


def test_rows_that_are_no_numbers_teach_nothing(tmp_path):
    x = rows()
    x[250:, 3] = float("nan")
    stream = ArrayActivations({"x": x}, batch=50, shuffle=False)
    with pytest.raises(NotFinite):  # the first rows already hold some
        fit(TopK(16, k=2), stream, **QUICK)
    many = torch.cat([rows(16_384), x])
    stream = ArrayActivations({"x": many}, batch=2048, shuffle=False)
    with pytest.raises(NotFinite, match="row 250"):
        fit(TopK(16, k=2), stream, **QUICK, checkpoint_dir=tmp_path, every=4)
    assert sorted(p.name for p in tmp_path.glob("step-*")) == [
        "step-000000004.safetensors",
        "step-000000008.safetensors",
    ]


def test_a_loss_that_breaks_is_refused_by_name():
    with pytest.raises(NotFinite, match="loss of relu-16-s0"):
        fit([TopK(16, k=2), ReLU(16, l1=1e30)], ArrayActivations({"x": rows()}), steps=30, lr=1e30, quiet=True)


def test_refusals():
    stream = two_sites(rows=300)[0]
    for call, error, words in (
        (lambda: fit([], planted(), **QUICK), BadInput, "no recipe"),
        (lambda: fit(TopK(8, k=2), stream, **QUICK), BadInput, "one site"),
        (lambda: fit(TopK(8, k=2), stream, site="c", **QUICK), UnknownSite, "'c'"),
        (lambda: fit(TopK(8, k=2), stream, site_in="a", site_out="b", **QUICK), BadInput, "Transcoder"),
        (lambda: fit(Transcoder(TopK(8, k=2)), stream, site="a", **QUICK), BadInput, "site_in and site_out"),
        (lambda: fit(Crosscoder(TopK(8, k=2)), stream, site="a", **QUICK), BadInput, "several sites"),
        (lambda: fit(TopK(8, k=2), stream, site="a", select="fp8", **QUICK), UnknownName, "'fp8'"),
        (lambda: fit(TopK(8, k=2), stream, site="a", normalize="unit", **QUICK), UnknownName, "'unit'"),
        (lambda: fit(TopK(8, k=2), stream, site="a", steps=30, lr=-1.0), BadInput, "learning rate"),
        (lambda: fit(TopK(8, k=2), stream, site="a", steps=0), BadInput, "steps=0"),
        (lambda: fit(TopK(8, k=2), stream, site="a", steps=5, warmup=0.7, decay=0.6), BadInput, "warmup"),
        (lambda: fit(TopK(8, k=2), stream, site="a", steps=5, parallel=True), BadInput, "torchrun"),
    ):
        with pytest.raises(error, match=words):
            call()


def test_an_empty_stream():
    class Empty:
        sites, widths, rows = ("x",), {"x": D}, 0

        def __iter__(self):
            return iter(())

        def state(self):
            return {}

        def seek(self, state):
            pass

    with pytest.raises(TooFewRows, match="no rows"):
        fit(TopK(8, k=2), Empty(), **QUICK)


def test_the_rate_goes_up_and_down():
    rate = Schedule(100, warmup=0.1, decay=0.2)
    assert [rate(n) for n in (0, 4, 9, 50, 80, 90, 99)] == pytest.approx([0.1, 0.5, 1, 1, 1, 0.5, 0.05])
    assert Schedule(10)(9) == 1
    assert learning_rate("auto", 1 << 14) == 2e-4
    assert learning_rate("auto", 1 << 12) == 4e-4
    assert learning_rate(1e-3, 8) == 1e-3


def test_moments_are_those_of_all_rows():
    x = rows(300) + 1e3
    moments = Moments(8, x.device)
    for part in x.split([1, 99, 150, 50]):
        moments.update(part)
    assert moments.variance == pytest.approx(float(x.double().var(dim=0, correction=0).sum()), rel=1e-4)
    torch.testing.assert_close(moments.mean, x.double().mean(0), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("wanted", [2.0, 6.0])
@pytest.mark.parametrize("penalty", ["tanh", "l0"])
def test_jumprelu_reaches_the_sparsity_it_aims_at(penalty, wanted):
    recipe = JumpReLU(WIDTH, l0=wanted, sparsity=3.0, penalty=penalty)
    fitted = fit(recipe, planted(), steps=400, lr=5e-3, quiet=True)
    assert fitted.history[-1]["l0"] == pytest.approx(wanted, rel=0.3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"steps": 2.5}, "steps=2.5", id="half a step"),
        pytest.param({"tokens": "1k"}, "tokens='1k'", id="tokens as text"),
        pytest.param({"steps": 11}, "the stream ends after 10", id="more steps than batches"),
        pytest.param({"tokens": 2**40}, "the stream ends after 10", id="more tokens than rows"),
        pytest.param({"seed": -1}, "seed=-1", id="negative seed"),
        pytest.param({"seed": 1.5}, "seed=1.5", id="seed a float"),
        pytest.param({"seed": [0, "a"]}, "seed='a'", id="a seed as text"),
        pytest.param({"seed": None}, "seed=None", id="no seed"),
        pytest.param({"clip": 0}, "clip=0", id="gradients clipped to nothing"),
        pytest.param({"clip": "a"}, "clip", id="clip as text"),
        pytest.param({"revive_every": 0}, "revive_every=0", id="revived never"),
        pytest.param({"log_every": 0}, "log_every=0", id="logged never"),
        pytest.param({"every": 2.5}, "every=2.5", id="half a checkpoint"),
        pytest.param({"lr": float("inf")}, "lr = inf", id="infinite rate"),
        pytest.param({"lr": True}, "lr = True", id="a flag as a rate"),
        pytest.param({"warmup": "a"}, "warmup", id="warmup as text"),
        pytest.param({"decay": float("nan")}, "decay nan", id="decay nan"),
        pytest.param({"site": 5}, "site=5", id="a site as a number"),
    ],
)
def test_options_of_another_kind_are_refused(options, said):
    stream = ArrayActivations(torch.randn(200, 6), batch=40, epochs=2)
    with pytest.raises(BadInput, match=said):
        fit(TopK(8, k=2), stream, quiet=True, **options)


@pytest.mark.parametrize("stream", [torch.zeros(4, 3), [], None], ids=["a tensor", "a list", "nothing"])
def test_what_is_no_stream_is_refused(stream):
    with pytest.raises(BadInput, match="ArrayActivations"):
        fit(TopK(8, k=2), stream, quiet=True)


@pytest.mark.parametrize("recipe", ["topk", TopK, [None]], ids=["a name", "a class", "nothing"])
def test_what_is_no_recipe_is_refused(recipe):
    with pytest.raises(BadInput, match="it is no recipe"):
        fit(recipe, ArrayActivations(torch.randn(20, 6)), steps=1, quiet=True)


def test_a_fit_that_breaks_while_it_revives_says_so():
    with pytest.raises(NotFinite, match="step"):
        fit(TopK(64, k=2, dead_after=20), planted(20), steps=60, lr=1e30, revive_every=1, quiet=True)
