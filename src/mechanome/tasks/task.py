"""`Task`: examples of one behaviour, with the metric that says how well a model does it and where they come from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from mechanome.core.errors import TooFewRows, UnknownName, nearest
from mechanome.core.progress import notice
from mechanome.core.tables import Table
from mechanome.engine.inputs import Batch
from mechanome.engine.memory import Budget
from mechanome.engine.model import Model
from mechanome.tasks.batches import Pair, encode, metric_named, pair
from mechanome.tasks.example import Example, Label, shown
from mechanome.tasks.selection import Selection, mistakes, unaligned


@dataclass(frozen=True)
class Provenance:
    """Where examples come from.

    Args:
        source: a generator's name, a file, or "user".
        seed, shots, split: what the generator was asked for; None where there was none.
        lists: the word lists it used, each with its license.
        steps: what was done to the examples since, in order.
    """

    source: str = "user"
    seed: int | None = None
    shots: int | None = None
    split: str | None = None
    lists: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """Examples of one behaviour.

    Args:
        name: what the behaviour is called.
        examples: the examples, in order.
        summary: one line for people.
        metric: a name of `mechanome.tasks.METRICS`: "logit_diff" (answer minus foil) or "logprob" (answer).
        provenance: where the examples come from.

    Raises:
        UnknownName: no such metric.
    """

    name: str
    examples: tuple[Example, ...]
    summary: str = ""
    metric: str = "logit_diff"
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self) -> None:
        object.__setattr__(self, "examples", tuple(self.examples))
        metric_named(self.metric)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    @overload
    def __getitem__(self, rows: int) -> Example: ...
    @overload
    def __getitem__(self, rows: slice) -> Task: ...
    def __getitem__(self, rows: int | slice) -> Example | Task:
        return self.examples[rows] if isinstance(rows, int) else replace(self, examples=self.examples[rows])

    def where(self, **groups: Label) -> Task:
        """The examples of these groups, as in `task.where(order="ABBA")`; `split` and `label` are groups here.

        Raises:
            UnknownName: a group that no example has.
        """
        rows = [_groups(e) for e in self.examples]
        known = {name for row in rows for name in row}
        for name in groups:
            if name not in known:
                raise UnknownName(f"group '{name}'", f"no example of '{self.name}' has it", nearest(name, known))
        wanted = groups.items()
        return replace(self, examples=tuple(e for e, row in zip(self.examples, rows) if wanted <= row.items()))

    def split(self, name: str) -> Task:
        """The examples of a split.

        Raises:
            UnknownName: no example is in it.
        """
        found = tuple(e for e in self.examples if e.split == name)
        if not found:
            splits = {e.split for e in self.examples}
            raise UnknownName(f"split '{name}'", f"no example of '{self.name}' is in it", nearest(name, splits))
        return replace(self, examples=found)

    def filter(self, model: Model, *, budget: Budget = None, quiet: bool = False) -> Selection:
        """Keep what the model does right: the answer is likelier than the foil, over all tokens of both.

        Args:
            model: an opened language model.
            budget: memory, such as "2GB"; examples are scored in pieces that fit.
            quiet: do not print how many were kept and dropped.

        Returns:
            a `Selection`: `.task`, `.dropped`, `.reasons`, `.margins` in nats.
        """
        self._not_empty()
        reasons, margins = mistakes(model, self.examples, budget)
        return self._selected(reasons, f"{self.name}, done right by {model.name}", margins, quiet)

    def aligned(self, model: Model, *, quiet: bool = False) -> Selection:
        """Keep what can be patched position by position: the counterfactual has as many tokens as the input.

        Args:
            model: whose tokenizer counts.
            quiet: do not print how many were kept and dropped.
        """
        self._not_empty()
        reasons = [unaligned(model, example) for example in self.examples]
        return self._selected(reasons, f"{self.name}, of equal token length", None, quiet)

    def encode(self, model: Model, counterfactual: bool = False) -> Batch:
        """The inputs (or counterfactuals) as one batch with their spans, rows in the order of examples.

        Raises:
            BadInput, ShapeMismatch: an example without a counterfactual; tensors that make no batch.
        """
        self._not_empty()
        return encode(model, self.examples, counterfactual)

    def __batch__(self, model: Model) -> Batch:
        """What functions of inputs (`model.run`, `mean_of`, a lens ...) take of a task: its inputs, as `encode`."""
        return self.encode(model)

    def batch(self, model: Model, *, equal_length: bool = True) -> Pair:
        """Inputs, counterfactuals and metric, as `activation_patching` takes them.

        The metric compares the first tokens in which answer and foil differ, after the last position of both batches:
        tokens that they share are put behind both prompts.

        Args:
            model: an opened language model.
            equal_length: refuse counterfactuals of another token length. Without it name positions by spans.

        Raises:
            ShapeMismatch: counterfactuals of another length.
            BadInput: an example without counterfactual, answer or foil, or that `aligned` drops.
        """
        self._not_empty()
        return pair(model, self.examples, self.metric, equal_length)

    def table(self, limit: int | None = None) -> Table:
        """One row per example: prompt, answer, foil, counterfactual and split; texts are cut in front."""
        rows = [
            (i, shown(e.inputs), shown(e.answer), shown(e.foil), shown(e.counterfactual), e.split)
            for i, e in enumerate(self.examples[:limit])
        ]
        more = f" (first {limit})" if limit is not None and limit < len(self) else ""
        return Table(("example", "input", "answer", "foil", "counterfactual", "split"), rows, f"{self!r}{more}")

    def to_jsonl(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `from_jsonl` reads to an equal task; see `mechanome.tasks.files`."""
        from mechanome.tasks.files import write_jsonl

        write_jsonl(self, path)

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str]) -> Task:
        """Read examples, one JSON object a line; see `mechanome.tasks.files`.

        Raises:
            BadInput: no such file, or a line that is no example. CorruptFile: a line that is no JSON.
        """
        from mechanome.tasks.files import read_jsonl

        return read_jsonl(path)

    def __repr__(self) -> str:
        splits = ", ".join(f"{n} {name}" for name, n in sorted(Counter(e.split for e in self.examples).items()))
        return f"Task '{self.name}': {len(self)} examples ({splits})" if self.examples else f"Task '{self.name}': empty"

    def _repr_html_(self) -> str:
        return self.table(10).html()

    def _selected(self, reasons: Sequence[str | None], what: str, margins: Any, quiet: bool) -> Selection:
        def part(rows: Iterable[int], step: str) -> Task:
            steps = (*self.provenance.steps, step)
            return replace(
                self,
                examples=tuple(self.examples[r] for r in rows),
                provenance=replace(self.provenance, steps=steps),
            )

        kept = [r for r, reason in enumerate(reasons) if reason is None]
        lost = [r for r, reason in enumerate(reasons) if reason is not None]
        found = Selection(
            part(kept, f"{what}: kept {len(kept)} of {len(self)}"),
            part(lost, f"not ({what}): {len(lost)} of {len(self)}"),
            tuple(reason for reason in reasons if reason is not None),
            what,
            margins,
        )
        if not quiet:
            notice(str(found))
        return found

    def _not_empty(self) -> None:
        if not self.examples:
            raise TooFewRows(f"task '{self.name}'", "it has no examples", "make more, or loosen what was filtered")


def _groups(example: Example) -> dict[str, Any]:
    return {**example.groups, "split": example.split, "label": example.label}
