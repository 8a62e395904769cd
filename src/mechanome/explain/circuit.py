"""The circuit of one prompt: how few edges of the model's graph are enough to bring its preference about.

Edges are ranked by integrated gradients between counterfactual and prompt, which is an estimate. The strongest of them
are then run as a circuit, which is exact: every other edge carries what it carries after the counterfactual. *NDF* says
how near the circuit's preference comes to the model's: 1 is the model, 0 no nearer than the counterfactual is.

The ranking of one prompt is often a poor one. With paraphrases, further prompts of the same behavior, each brings its
own, and of all circuits of one size the best on the prompt itself is taken: best of N (query circuits, arXiv
2509.24808). That choice looks at the very prompt that it is measured on, so the circuit is measured on the paraphrases,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mechanome.circuits import Circuit, Graph, QueryCircuits, execute, ndf
from mechanome.circuits.certification import Certificate
from mechanome.circuits.finding.record import certificate_record
from mechanome.circuits.graph import ARROW
from mechanome.circuits.query import ScoredQuery
from mechanome.core import NotServed, Table
from mechanome.engine import Model, Site, parse
from mechanome.engine.memory import Budget
from mechanome.explain import paraphrases
from mechanome.explain.certified import MOST, check_prompts, edges_certified
from mechanome.explain.components import Component, attention, most_attended
from mechanome.explain.effects import Grid
from mechanome.explain.items import Item
from mechanome.explain.question import Question
from mechanome.explain.tokens import quoted, whole

ENOUGH = 0.8
"""NDF from which on a circuit is said to be enough."""
SIZES = 10
"""Sizes that are tried: as many numbers 1, 2, 5, 10 ... below the number of edges, the largest ones."""
FEWEST_SIZES = 5
"""Fewer sizes are no curve."""
TOKENS = 2000
"""Circuits times tokens that are run at most: a long prompt tries fewer sizes and paraphrases, or has no circuit."""
STEPS = 5
"""Points of the integrated gradients."""


@dataclass(frozen=True)
class Sample:
    """A paraphrase, and what the circuit of the prompt keeps there.

    Args:
        prompt, counterfactual, answer, foil: its question, as texts.
        ndf: of the circuit that is shown, on this paraphrase.
    """

    prompt: str
    counterfactual: str
    answer: str
    foil: str
    ndf: float


@dataclass(frozen=True)
class PromptCircuit:
    """The circuits of one prompt, from few edges to many.

    Args:
        found: the best circuit of each size, and its NDF on the prompt.
        samples: the paraphrases whose rankings were tried, too.
        tips: source of the graph to a remark: what this part does alone, and where a head looks.
        notes: what was left out, and why.
        questions: the paraphrases as questions, in the order of `samples`.
        certificate: of the edges that are strongest on average over the prompt and its paraphrases, as many as the
            circuit takes; None where it was not asked for.
    """

    found: QueryCircuits = field(repr=False)
    samples: tuple[Sample, ...] = ()
    tips: Mapping[str, str] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()
    questions: tuple[Question, ...] = field(default=(), repr=False)
    certificate: Certificate | None = field(default=None, repr=False)

    @property
    def enough(self) -> bool:
        """Whether any of the circuits reaches `ENOUGH`."""
        return self.found.smallest(ENOUGH) is not None

    @property
    def place(self) -> int:
        """The number of the circuit that is shown: the smallest that is enough; where none is, the nearest to it."""
        values = self.found.ndf.tolist()
        return next((i for i, value in enumerate(values) if value >= ENOUGH), values.index(max(values)))

    @cached_property
    def circuit(self) -> Circuit:
        """The circuit that is shown, without edges that lie on no path from input to logits: they change nothing."""
        return self.found.circuits[self.place].pruned()

    @property
    def size(self) -> int:
        """How many edges of a ranking it takes, those on no path among them."""
        return self.found.budgets[self.place]

    @property
    def ndf(self) -> float:
        """Its NDF."""
        return float(self.found.ndf[self.place])

    @property
    def dips(self) -> tuple[int, ...]:
        """Larger circuits that are not enough, though the one that is shown is; in edges."""
        later = zip(self.found.budgets[self.place + 1 :], self.found.ndf[self.place + 1 :].tolist())
        return tuple(n for n, value in later if value < ENOUGH) if self.enough else ()

    @property
    def alone(self) -> tuple[float, ...]:
        """NDF of the circuits that the prompt's own ranking gives, one a size."""
        return tuple(self.found.tried[0].tolist())

    def proposer(self, place: int) -> str:
        """Whose ranking won at one size: a paraphrase as text, or empty for the prompt itself."""
        number = self.found.winner[place]
        return self.samples[number - 1].prompt if number else ""

    @property
    def elsewhere(self) -> float | None:
        """Mean NDF of the circuit that is shown on those paraphrases whose ranking it is not; None without any."""
        own = self.found.winner[self.place] - 1
        others = [sample.ndf for i, sample in enumerate(self.samples) if i != own]
        return sum(others) / len(others) if others else None

    def curve(self) -> Table:
        """One row a size."""
        found, shares = self.found, (circuit.share for circuit in self.found.circuits)
        columns = ["edges", "share", "NDF", "NFS", "NDF of the prompt's own ranking", "ranking of"]
        who = [quoted(text) if (text := self.proposer(i)) else "the prompt" for i in range(len(found.budgets))]
        return Table(columns, list(zip(found.budgets, shares, found.ndf.tolist(), found.nfs.tolist(), self.alone, who)))

    def record(self) -> dict[str, Any]:
        """As plain data; edges by name, the largest score first."""
        found, circuit = self.found, self.circuit
        listed = circuit.table(found.scores, k=None)
        return {
            "enough": ENOUGH,
            "reached": self.enough,
            "edges_in_graph": found.graph.n_edges,
            "additive": found.graph.additive,
            "method": found.method,
            "scores": repr(found.scores),
            "total_effect": found.total_effect,
            "curve": self.curve().records(),
            "circuit": {
                "edges": self.size,
                "on_paths": len(circuit),
                "ndf": self.ndf,
                "names": [f"{source}{ARROW}{target}" for source, target, _ in listed.rows],
                "scores": [score for _, _, score in listed.rows],
            },
            "larger_that_are_not_enough": list(self.dips),
            "paraphrases": [vars(sample) for sample in self.samples],
            "mean_ndf_on_other_paraphrases": self.elsewhere,
            "certificate": None if self.certificate is None else certificate_record(self.certificate),
            "notes": list(self.notes),
        }


def prompt_circuit(
    model: Model,
    question: Question,
    parts: Sequence[Grid],
    named: Sequence[Component],
    items: Sequence[Item] = (),
    *,
    certified: bool = False,
    seed: int = 0,
    budget: Budget = None,
    quiet: bool = False,
) -> PromptCircuit:
    """Find the circuits of a prompt.

    Args:
        model: an opened language model.
        question: what is explained; the circuits are of its two rows and its metric.
        parts: the exact effects of all parts, one grid a kind.
        named: the parts of the explanation.
        items: further prompts of the same behavior.
        certified: whether a certificate is asked for. seed: of its masks.
        budget: memory for the largest piece.
        quiet: no progress line.

    Raises:
        NotServed: a model whose computation is no such graph, or a prompt too long for it.
        NotFinite, BudgetTooSmall: as `query_circuits`.
        TooFewRows: too few paraphrases for a certificate.
    """
    graph = Graph.of(model)
    most = min(MOST, _rankings(question.length) - 1)
    alike = paraphrases.read(model, items, question, most, TOKENS // FEWEST_SIZES)
    n = len(alike.questions)
    if certified:
        check_prompts(alike, graph.n_edges)
    sizes = _sizes(graph.n_edges, question.length * (1 + n))
    scored = ScoredQuery.of(
        graph,
        triple(question),
        samples=[triple(q) for q in alike.questions],
        steps=STEPS,
        quiet=quiet,
        budget=budget,
    )
    made = PromptCircuit(scored.circuits("best-of-n" if n else "single", sizes))
    samples = tuple(_sample(q, made.circuit, budget) for q in alike.questions)
    every = len(_ladder(graph.n_edges))
    few = [f"{len(sizes)} sizes of circuits were tried instead of {every}, for time"] if len(sizes) < every else []
    return replace(
        made,
        samples=samples,
        tips=_tips(model, question, made.circuit, parts, named),
        notes=(*alike.left_out, *few, *made.found.scores.notes),
        questions=alike.questions,
        certificate=edges_certified(graph, scored.scores, made.size, seed) if certified else None,
    )


def _sample(question: Question, circuit: Circuit, budget: Budget) -> Sample:
    [kept] = ndf(execute(circuit, triple(question), budget=budget, quiet=True))
    assert kept.value is not None  # the gap of a question is never as small as that
    return Sample(question.prompt, question.counterfactual, question.answer.text, question.foil.text, kept.value)


def triple(question: Question) -> tuple[Any, Any, Any]:
    """A question as circuits take it: prompt, counterfactual and metric."""
    return question.clean, question.corrupted, question.metric


def _rankings(length: int) -> int:
    """How many rankings can be tried on a prompt of so many tokens.

    Raises:
        NotServed: not even one.
    """
    found = TOKENS // (length * FEWEST_SIZES)
    if not found:
        raise NotServed(
            f"the circuit of a prompt of {length} tokens",
            f"{FEWEST_SIZES} circuits of a prompt of {length} tokens take too long; up to {TOKENS // FEWEST_SIZES} "
            "tokens are served",
            "call mechanome.circuits.query_circuits",
        )
    return found


def _ladder(n_edges: int) -> list[int]:
    """The largest numbers 1, 2, 5, 10, 20, 50 ... below the number of edges."""
    steps = (k * 10**power for power in range(len(str(n_edges))) for k in (1, 2, 5))
    return [n for n in steps if n < n_edges][-SIZES:]


def _sizes(n_edges: int, tokens: int) -> list[int]:
    """As many sizes as can be run, from the largest down.

    Args:
        n_edges: of the graph. tokens: that one size runs.
    """
    ladder = _ladder(n_edges)
    step = -(-len(ladder) // max(1, TOKENS // tokens))
    return ladder[::-1][::step][::-1]


def _tips(
    model: Model, question: Question, circuit: Circuit, parts: Sequence[Grid], named: Sequence[Component]
) -> dict[str, str]:
    """What each part of a circuit does alone, and where a head looks: at the position where it acts, where that is
    known, else from the last one."""
    alone = {
        str(Site(grid.point, layer, head=j if grid.axis == "head" else None)): value
        for grid in parts
        for layer, row in zip(grid.layers, grid.shares.tolist())
        for j, value in enumerate(row)
        if value == value
    }
    sites = [parse(name) for name in circuit.nodes]
    acting = {part.site: part.position for part in named}
    rows = attention(model, question.clean, [(s, acting.get(s, question.length - 1)) for s in sites if s.point == "z"])
    found = {}
    for site in sites:
        said = [f"alone it restores {whole(alone[str(site)])}"] if str(site) in alone else []
        if site in rows:
            query = acting.get(site, question.length - 1)
            seen = ", ".join(f"{quoted(question.tokens[p])} {whole(w)}" for p, w in most_attended(rows[site], query))
            said.append(f"from {quoted(question.tokens[query])} it looks at {seen}")
        if said:
            found[str(site)] = "; ".join(said)
    return found
