"""Gates, sizes and training of masks; learned masks find a planted circuit."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from circuit_models import METRIC, opened
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import mechanome as mn
from mechanome.circuits import Circuit, Graph, acdc, execute, learned_mask, search, train_masks
from mechanome.circuits.search.gates import GATES
from mechanome.circuits.search.mask_training import Moment, Training
from mechanome.circuits.search.objectives import OBJECTIVES
from mechanome.circuits.search.running import Runner
from mechanome.circuits.search.sparsity import Price, TargetSize
from mechanome.core import BadInput, NotFinite

PLANTED = (
    "resid_pre.0->v.0.kv1",
    "resid_pre.0->v.0.kv3",
    "z.0.h1->v.1.kv2",
    "z.0.h1->mlp_in.0",
    "z.0.h3->logits",
    "z.1.h2->logits",
    "mlp_out.0->logits",
)
WIDTH = 16


def _planted_module() -> GPT2LMHeadModel:
    """A GPT-2 whose stream has four rooms: tokens are written to the first, and only the third is read as logits.

    Two heads of the first layer read tokens; one writes to the middle room, where a head of the second layer and the
    MLP of the first read, and one straight to the third. All other heads and MLPs write nothing. The last room holds
    the same large numbers everywhere, so that norms hardly differ and no part speaks to another through their scale.
    """
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=4, n_embd=4 * WIDTH, n_inner=64, vocab_size=60, n_positions=16, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    rooms = [slice(i * WIDTH, (i + 1) * WIDTH) for i in range(4)]

    def draw(*shape: int, size: float) -> Tensor:
        return torch.randn(*shape) * size

    with torch.no_grad():
        for name, p in model.named_parameters():
            if "ln_" not in name:
                p.zero_()
        model.transformer.wte.weight[:, rooms[0]] = draw(60, WIDTH, size=1.0)
        model.transformer.wpe.weight[:, rooms[3]] = 6.0 * torch.tensor([1.0, -1.0]).repeat(WIDTH // 2)
        model.lm_head.weight[:, rooms[2]] = draw(60, WIDTH, size=1.0)
        for block in model.transformer.h:
            for number in range(4):
                own = slice(number * WIDTH, (number + 1) * WIDTH)
                block.attn.c_attn.weight[rooms[3], own] = draw(WIDTH, WIDTH, size=0.3)
                keys = slice(4 * WIDTH + own.start, 4 * WIDTH + own.stop)
                block.attn.c_attn.weight[rooms[0], keys] = draw(WIDTH, WIDTH, size=0.01)
        for layer, number, source, into in ((0, 1, 0, 1), (0, 3, 0, 2), (1, 2, 1, 2)):
            attention = model.transformer.h[layer].attn
            own = slice(number * WIDTH, (number + 1) * WIDTH)
            values = slice(8 * WIDTH + own.start, 8 * WIDTH + own.stop)
            attention.c_attn.weight[rooms[source], values] = draw(WIDTH, WIDTH, size=0.8)
            attention.c_proj.weight[own, rooms[into]] = draw(WIDTH, WIDTH, size=0.3)
        mlp = model.transformer.h[0].mlp
        mlp.c_fc.weight[rooms[1]] = draw(WIDTH, 64, size=0.8)
        mlp.c_proj.weight[:, rooms[2]] = draw(64, WIDTH, size=0.12)
    return model


@cache
def planted() -> tuple[Graph, Circuit]:
    graph = Graph.of(mn.load(_planted_module()))
    return graph, Circuit.of(graph, PLANTED)


def prompts(rows: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randint(0, 60, (rows, 4), generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_the_planted_circuit_is_one() -> None:
    """It does what the model does, and no edge of it can be spared; of the others every one can."""
    graph, circuit = planted()
    others = [graph.name(*e) for e in (graph.mask & ~circuit.edges).nonzero().tolist()]
    less = [circuit - Circuit.of(graph, [edge]) for edge in PLANTED]
    more = [~Circuit.of(graph, [edge]) for edge in others]
    found = execute([circuit, *less, *more], prompts(), METRIC, quiet=True).divergence.double().mean(1)
    assert graph.n_edges == 110 and found[0] < 0.02
    assert found[1:8].min() > 0.1 > 10 * found[8:].max()


@pytest.mark.parametrize("gate", GATES)
def test_masks_find_the_planted_circuit_by_size(gate: str) -> None:
    graph = planted()[0]
    found = learned_mask(graph, prompts(), METRIC, size=7, gate=gate, steps=300, quiet=True)
    assert set(found.circuit) == set(PLANTED)
    assert found.evaluations == 302 and "kl of the circuit 0.0" in found.notes[0]
    history = found.history
    assert isinstance(history, Training) and len(history.losses) == 300
    assert history.open[0] > 90 and 5 < history.open[-1] < 10
    assert len(history.table(10).rows) >= 10 and history.table().rows[-1][0] == 300


@pytest.mark.parametrize("gate", GATES)
def test_masks_find_the_planted_circuit_by_price(gate: str) -> None:
    graph = planted()[0]
    found = learned_mask(graph, prompts(), METRIC, threshold=0.03, gate=gate, steps=300, quiet=True)
    assert set(found.circuit) == set(PLANTED)


def test_other_searches_find_it_too() -> None:
    graph, circuit = planted()
    assert acdc(graph, prompts(), METRIC, threshold=0.03, quiet=True).circuit == circuit
    settings: dict[str, Any] = {"objective": "deviation", "steps": 300, "quiet": True}
    found = search(graph, prompts(), METRIC, method="edge-pruning", size=7, **settings)
    assert found.circuit == circuit and found.method == "edge-pruning"


def test_a_training_is_repeated_by_its_seed() -> None:
    graph = planted()[0]
    settings: dict[str, Any] = {"size": 20, "gate": "gumbel", "steps": 5, "batch": 3, "quiet": True}
    logits = [learned_mask(graph, prompts(), METRIC, seed=s, **settings).history.logits for s in (0, 0, 1)]  # type: ignore
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])
    state = torch.get_rng_state()
    learned_mask(graph, prompts(), METRIC, **settings)
    assert torch.equal(state, torch.get_rng_state()), "the caller's draws stay as they were"


def test_edges_outside_the_start_stay_shut() -> None:
    graph = planted()[0]
    start = ~Circuit.of(graph, PLANTED[:1])
    found = learned_mask(graph, prompts(), METRIC, size=6, start=start, steps=100, prune=False, quiet=True)
    assert found.circuit <= start and len(found.circuit) == 6
    with pytest.raises(BadInput, match="there are 109 edges to choose from"):
        learned_mask(graph, prompts(), METRIC, size=110, start=start)


def test_one_more_loss_has_its_say() -> None:
    graph = planted()[0]
    i, j = graph.index(PLANTED[4])

    def shun(moment: Moment) -> Tensor:
        return 5 * moment.logits[:, i, j].sigmoid()

    found = learned_mask(graph, prompts(), METRIC, size=6, extra=shun, gate="gumbel", steps=200, quiet=True)
    assert PLANTED[4] not in found.circuit and len(set(found.circuit) & set(PLANTED)) >= 4


def test_circuits_are_trained_at_once_and_losses_take_turns() -> None:
    graph = planted()[0]
    runner = Runner.of(graph, prompts(4), METRIC, OBJECTIVES["kl"], intervention="patch", batch=2)
    seen: list[tuple[float, tuple[int, ...]]] = []
    drawn: list[Tensor] = []

    def first(moment: Moment) -> Tensor:
        seen.append((moment.progress, moment.part.rows))
        drawn.append(moment.draw().detach())
        # The first circuit pays for edges, the second one does not.
        return Price(0.5)(moment) * torch.tensor([1.0, 0.0])

    def second(moment: Moment) -> Tensor | None:
        drawn.append(moment.draw().detach())
        return None if moment.progress < 0.5 else -moment.open * torch.tensor([0.0, 1.0])

    found = train_masks(runner, GATES["gumbel"], [first, second], circuits=2, steps=6, start=0.0, quiet=True)
    assert found.logits.shape == (2, *graph.shape) and len(found.losses) == 6
    moved = found.logits[:, graph.mask].mean(1)
    assert moved[0] < -0.3 and 0.1 < moved[1] < 0.5, "each circuit goes its own way, the second from half-time on"
    assert [round(p * 6) for p, _ in seen] == list(range(6)) and len({rows for _, rows in seen}) == 2
    assert not torch.equal(drawn[0], drawn[1]), "each turn draws for itself"
    assert float(drawn[0][:, ~graph.mask].abs().max()) == 0.0


def test_gates_open_as_often_as_they_say() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0])
    for name in ("hard-concrete", "gumbel"):
        gate = GATES[name]
        masks = gate.sample(logits.expand(20_000, 5), 0.5)
        share = (masks > 0).double().mean(0)
        assert torch.allclose(share, gate.open(logits, 0.5).double(), atol=0.015), name
        assert bool(((masks >= 0) & (masks <= 1)).all()) and bool((masks == 1).any())
    soft = GATES["hard-concrete"].sample(logits.expand(20_000, 5), 0.5)
    assert 0.2 < float(((soft > 0) & (soft < 1)).float().mean()) < 0.8
    assert float(GATES["hard-concrete"].open(torch.tensor(0.0), 0.5)) == pytest.approx(
        1 / (1 + math.exp(2 / 3 * math.log(0.1 / 1.1)))
    )


def test_gates_have_gradients_where_their_masks_have_none() -> None:
    logits = torch.tensor([-2.0, -0.1, 0.3, 4.0], requires_grad=True)
    torch.manual_seed(0)
    for name in ("gumbel", "hard-concrete"):
        masks = GATES[name].sample(logits.expand(500, 4), 0.5)
        (slope,) = torch.autograd.grad(masks.sum(), logits)
        assert bool((slope > 0).all()), name
    assert set(GATES["gumbel"].sample(logits, 0.5).round(decimals=6).tolist()) <= {0.0, 1.0}


def test_the_deterministic_gate_closes_slowly() -> None:
    logits = torch.tensor([-2.0, -0.2, 0.3, 4.0])
    gate = GATES["deterministic"]
    assert torch.equal(gate.sample(logits, 0.0), logits.sigmoid())
    assert torch.allclose(gate.sample(logits, 1.0), (20 * logits).sigmoid())
    assert torch.equal(gate.sample(logits, 0.7), gate.open(logits, 0.7))


def test_a_size_that_is_missed_costs_ever_more() -> None:
    graph = planted()[0]
    runner = Runner.of(graph, prompts(2), METRIC, OBJECTIVES["kl"], intervention="patch")
    sparse = TargetSize(10, 110)
    assert sparse.target(0.0) == pytest.approx(110) and sparse.target(0.6) == sparse.target(0.9) == pytest.approx(10)
    assert sparse.target(0.3) == pytest.approx(math.sqrt(1100))
    shares = torch.full((1, *graph.shape), math.log(20 / 90)).requires_grad_(True)
    moment = Moment(shares, graph.mask, GATES["gumbel"], runner, runner.parts[0], 0.99)
    assert float(moment.open.detach()) == pytest.approx(20, rel=1e-4)
    with torch.no_grad():
        sparse.linear.fill_(1.0), sparse.square.fill_(2.0)
    cost = sparse(moment)
    assert float(cost.detach()) == pytest.approx(math.log(2) + 2 * math.log(2) ** 2, rel=1e-4)
    cost.sum().backward()
    assert float(sparse.linear.grad) == pytest.approx(math.log(2), rel=1e-4) and float(shares.grad.sum()) > 0  # type: ignore
    assert float(Price(0.5)(moment).detach()) == pytest.approx(10, rel=1e-4)


@pytest.mark.parametrize(
    "more, error, why",
    [
        ({"size": None}, BadInput, "neither says"),
        ({"threshold": 0.1}, BadInput, "both say"),
        ({"size": 111}, BadInput, "there are 110"),
        ({"size": None, "threshold": 0.0}, BadInput, "positive"),
        ({"gate": "concrete"}, BadInput, "hard-concrete"),
        ({"steps": 0}, BadInput, "positive"),
        ({"batch": -1}, BadInput, "positive"),
        ({"rate": 0}, BadInput, "rate"),
        ({"objective": "loss"}, BadInput, "no such objective"),
        ({"start": Circuit.full(Graph.of(opened("gpt2")))}, BadInput, "different graphs"),
        ({"extra": lambda moment: moment.open * float("nan")}, NotFinite, "step 1"),
        ({"metric": lambda logits, rows: logits[:, 0] / 0}, NotFinite, "metric"),
        ({"data": (prompts(2)[0], None)}, BadInput, "needs a corrupted"),
    ],
)
def test_refusals_of_masks(more: dict[str, Any], error: type[Exception], why: str) -> None:
    given = {"data": prompts(2), "metric": METRIC, "size": 5, "steps": 2, "quiet": True, **more}
    with pytest.raises(error, match=why):
        learned_mask(planted()[0], given.pop("data"), given.pop("metric"), **given)
