"""How good a circuit is: each measure with its definition, its source, and the cases in which it does not exist.

`m(C)` is the metric of the circuit, `m(M)` of the model, `m(0)` of the empty circuit, which with patching is that of
the corrupted inputs. A measure that divides by `m(M) - m(0)` does not exist where the intervention changes nothing:
then it has a reason and no number.

| measure | definition | source |
|---|---|---|
| `faithfulness` | `(m(C) - m(0)) / (m(M) - m(0))`, of means over examples: 1 is the model, beyond [0, 1] possible | Wang et al. 2023, Marks et al. 2024 |
| `ndf` | `1 - min(abs((m(M) - m(C)) / (m(M) - m(0))), 1)`, mean over examples: in [0, 1] | arXiv 2509.24808 |
| `completeness` | faithfulness of the complement: 0 where the circuit holds all that matters | Marks et al. 2024 |
| `divergence` | `KL(M // C)` of the next token, nats | Conmy et al. 2023 |
| `accuracy` | share of examples with `m > 0`; of complements: what can be done without the circuit | Bhaskar et al. 2024 |
| `circuit_error` | share of examples on which the circuit prefers another answer than the model | arXiv 2510.00845 |
| `iou` | shared edges (or sources) over all of both | Jaccard |
| `cpr` | area under faithfulness over circuit size | Mueller et al. 2025 (MIB) |
| `cmd` | area between faithfulness and 1 over circuit size | Mueller et al. 2025 (MIB) |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.execution import Executed
from mechanome.circuits.graph import Graph, same_graph
from mechanome.circuits.measured import Measured, mean, over_examples
from mechanome.core import BadInput, ShapeMismatch, Table, binomial
from mechanome.engine.asked import in_vocabulary, one_of
from mechanome.engine.plain import number

LEAST = 1e-3
"""The smallest total effect `abs(m(M) - m(0))` that is divided by, in units of the metric."""
SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Circuit sizes of the MIB benchmark, shares of all edges."""
_NO_EFFECT = f"the intervention changes the metric by less than {LEAST:g}"


def faithfulness(found: Executed) -> tuple[Measured, ...]:
    """Normalized faithfulness of each circuit: the share of the total effect that it keeps.

    `(m(C) - m(0)) / (m(M) - m(0))`, a ratio of means over examples, with a bootstrap interval over examples. It can
    leave [0, 1], where a circuit does more than the model or the opposite. Not defined where the total effect is below
    `LEAST`.
    """
    return tuple(_ratio("faithfulness", rows) for rows in _rows(found))


def completeness(complements: Executed) -> tuple[Measured, ...]:
    """What is left when each circuit is taken out: the faithfulness of its complement, 0 for a complete circuit.

    Args:
        complements: the complements, run: `execute([~c for c in circuits], data)`.
    """
    return tuple(_ratio("completeness", rows) for rows in _rows(complements))


def ndf(found: Executed) -> tuple[Measured, ...]:
    """Normalized deviation faithfulness of each circuit: `1 - min(|m(M) - m(C)| / |m(M) - m(0)|, 1)`, in [0, 1].

    Mean over the examples whose total effect is at least `LEAST`; how many were left out is in the note.
    """
    return tuple(mean("NDF", _each_ndf(rows), _NO_EFFECT) for rows in _rows(found))


def divergence(found: Executed) -> tuple[Measured, ...]:
    """Mean `KL(model || circuit)` of the token at the answer position, in nats."""
    return tuple(mean("KL(model || circuit)", values.tolist()) for values in found.divergence)


def accuracy(found: Executed) -> tuple[Measured, ...]:
    """Share of examples on which the metric is positive, so the answer preferred, for metrics such as `LogitDiff`.

    Of complements (`execute([~c for c in circuits], data)`) this is complement accuracy.
    """
    return tuple(_share("accuracy", values > 0) for values in found.values)


def circuit_error(found: Executed, answers: Tensor | None = None) -> tuple[Measured, ...]:
    """Share of examples on which each circuit's preferred answer is not the model's.

    Args:
        found: circuits that were run.
        answers: token ids to choose from, `[answer]`, or `[example, answer]`; None for the whole vocabulary. With ids
            the logits are needed: `execute(..., logits=True)`, of the circuits and, for the model, of the full one
            last.

    Raises:
        BadInput: ids, but no logits or no full circuit. ShapeMismatch: ids of other examples.
    """
    if answers is None:
        return tuple(_share("circuit error", ~same) for same in found.agrees)
    if found.logits is None or len(found.circuits[-1]) != found.graph.n_edges:
        raise BadInput(
            "answers",
            "they need logits of the circuits and of the model",
            "use execute([*circuits, Circuit.full(graph)], ..., logits=True)",
        )
    n, ids = found.values.shape[1], answers.expand(found.values.shape[1], -1) if answers.dim() == 1 else answers
    if ids.dim() != 2 or len(ids) != n or not ids.numel():
        raise ShapeMismatch(f"answers of shape {list(answers.shape)}", f"there are {n} examples", "give ids for each")
    in_vocabulary("answer", ids, found.logits.shape[-1])
    chosen = found.logits.gather(2, ids.expand(len(found.circuits), -1, -1)).argmax(-1)
    return tuple(_share("circuit error", own != chosen[-1]) for own in chosen)


def iou(a: Circuit, b: Circuit, of: Literal["edges", "nodes"] = "edges") -> Measured:
    """Shared members over all members of two circuits; not defined where both are empty.

    Args:
        a, b: circuits of one graph. of: edges, or sources that send along any of them.
    """
    same_graph([a.graph, b.graph])
    one_of("of", of, ("edges", "nodes"))
    first, second = (a.edges, b.edges) if of == "edges" else (a.used, b.used)
    union = int((first | second).sum())
    if not union:
        return Measured(f"IoU of {of}", None, note="both circuits are empty")
    return Measured(f"IoU of {of}", int((first & second).sum()) / union)


def sizes_in_edges(graph: Graph, shares: Sequence[float] = SIZES) -> list[int]:
    """Numbers of edges of circuits at shares of a graph, rounded down as MIB does.

    Raises:
        BadInput: shares that are no numbers from 0 to 1.
    """
    return [int(share * graph.n_edges) for share in _shares(shares)]


@dataclass(frozen=True)
class SizeCurve:
    """Faithfulness over circuit size.

    Args:
        sizes: shares of the graph's edges, rising.
        faithfulness: at each size.
        cpr, cmd: the areas under the curve, and between it and 1.
    """

    sizes: tuple[float, ...]
    faithfulness: tuple[Measured, ...]
    cpr: Measured
    cmd: Measured

    def table(self) -> Table:
        """One row per size."""
        rows = [
            (size, f.value, *((f.interval.lo, f.interval.hi) if f.interval else (None, None)), f.note)
            for size, f in zip(self.sizes, self.faithfulness)
        ]
        return Table(["share of edges", "faithfulness", "lo", "hi", "note"], rows, f"{self.cpr}; {self.cmd}")


def size_curve(found: Executed, sizes: Sequence[float] | None = None) -> SizeCurve:
    """Faithfulness of nested or ranked circuits over their size, with CPR and CMD.

    CPR, the circuit performance ratio, is the area under faithfulness over circuit size; CMD, the circuit-model
    distance, the area between faithfulness and 1 (Mueller et al. 2025). Areas are by trapezoids between the sizes
    given, on a linear axis of shares of edges, so the ten sizes of MIB (`SIZES`) span 0.001 to 1, and a perfect method
    has CPR 0.999 and CMD 0. Size is the number of edges after pruning over that of the graph; an edge counts as one, as
    in MIB for circuits of edges and of whole nodes (a node cut into neurons would count by the share of its neurons).
    Intervals are over examples, drawn together for all sizes.

    Args:
        found: at least two circuits that were run.
        sizes: a share for each; None for the share of edges each has.

    Raises:
        BadInput: fewer than two sizes, two that are the same, or one that is no share. ShapeMismatch: not one size for
            each circuit.
    """
    shares = [c.share for c in found.circuits] if sizes is None else _shares(sizes)
    if len(shares) != len(found.circuits):
        raise ShapeMismatch(f"{len(shares)} sizes", f"there are {len(found.circuits)} circuits", "give one for each")
    order = sorted(range(len(shares)), key=lambda i: shares[i])
    ordered = tuple(shares[i] for i in order)
    if len(set(ordered)) < max(2, len(ordered)):
        raise BadInput("the sizes of a curve", "they must be two or more, and differ", "run circuits of rising size")
    faithful = faithfulness(found)
    rows = _columns(found)[:, [*order, -2, -1]]

    def area(name: str, distance: bool) -> Measured:
        def statistic(some: np.ndarray) -> float:
            values = some.mean(0)
            effect = values[-2] - values[-1]
            if not _defined(effect, sign):
                return float("nan")
            f = (values[:-2] - values[-1]) / effect
            return float(np.trapezoid(np.abs(1 - f) if distance else f, ordered))

        effect = float(rows[:, -2].mean() - rows[:, -1].mean())
        sign = float(np.sign(effect))
        return Measured(name, None, note=_NO_EFFECT) if abs(effect) < LEAST else over_examples(name, rows, statistic)

    return SizeCurve(ordered, tuple(faithful[i] for i in order), area("CPR", False), area("CMD", True))


def metrics_table(found: Executed, complements: Executed | None = None) -> Table:
    """Every measure of each circuit, as text with intervals.

    Args:
        found: circuits that were run. complements: their complements, in the same order, if these were run.

    Raises:
        BadInput: complements of other circuits.
    """
    if complements is not None and complements.circuits != tuple(~c for c in found.circuits):
        raise BadInput("complements", "they are not those of the circuits", "use execute([~c for c in circuits], data)")
    columns: dict[str, Iterable[object]] = {"edges": [len(c) for c in found.circuits]}
    measures = [faithfulness(found), ndf(found), divergence(found), accuracy(found), circuit_error(found)]
    if complements is not None:
        measures += [completeness(complements)]
        columns["complement accuracy"] = [_cell(m) for m in accuracy(complements)]
    columns |= {each[0].name: [_cell(m) for m in each] for each in measures}
    return Table(list(columns), list(zip(*columns.values())), repr(found))


def _shares(sizes: Sequence[float]) -> list[float]:
    found = [float(number(size, "a share of the edges")) for size in sizes]
    if wrong := [share for share in found if not 0 <= share <= 1]:
        raise BadInput(f"a share of {wrong[0]:g} of the edges", "shares are 0 to 1", "give for example 0.01")
    return found


def _cell(found: Measured) -> str:
    return f"- ({found.note})" if found.value is None else str(found.interval or f"{found.value:.4g}")


def _columns(found: Executed) -> np.ndarray:
    """`[example, circuit and model and empty]` in float64."""
    return torch.cat([found.values, found.clean[None], found.empty[None]]).T.double().numpy()


def _rows(found: Executed) -> list[np.ndarray]:
    """Per circuit `[example, (circuit, model, empty)]`."""
    every = _columns(found)
    return [every[:, [i, -2, -1]] for i in range(len(found.circuits))]


def _defined(effect: float, sign: float) -> bool:
    """Whether a total effect can be divided by, and has the sign of the whole data's."""
    return abs(effect) >= LEAST and np.sign(effect) == sign


def _ratio(name: str, rows: np.ndarray) -> Measured:
    effect = float(rows[:, 1].mean() - rows[:, 2].mean())
    if abs(effect) < LEAST:
        return Measured(name, None, note=_NO_EFFECT)
    sign = float(np.sign(effect))

    def statistic(some: np.ndarray) -> float:
        circuit, model, empty = some.mean(0)
        return float((circuit - empty) / (model - empty)) if _defined(model - empty, sign) else float("nan")

    note = "" if effect > 0 else "the metric is lower on the clean inputs"
    return over_examples(name, rows, statistic, note)


def _each_ndf(rows: np.ndarray) -> list[float | None]:
    return [None if abs(m - e) < LEAST else 1 - min(abs((m - c) / (m - e)), 1.0) for c, m, e in rows.tolist()]


def _share(name: str, yes: Tensor) -> Measured:
    interval = binomial(int(yes.sum()), len(yes))
    return Measured(name, interval.estimate, interval, each=tuple(yes.double().tolist()))
