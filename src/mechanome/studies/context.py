"""`Context`: what a study's `measure` is given: its plan, its models, and parts that survive a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mechanome.core import BadInput, Bar, RunFolder, UnknownName, nearest
from mechanome.studies.parts import Part, PartStore
from mechanome.studies.plan import Plan
from mechanome.studies.study import S

if TYPE_CHECKING:
    from mechanome.engine import Model

K = TypeVar("K")


@dataclass(frozen=True)
class Context(Generic[S]):
    """What a measurement may use.

    Args:
        plan: every choice made.
        folder: the run's; each finished part is a line of its `metrics.jsonl`.
        parts: the finished ones.
        quiet: no progress.
    """

    plan: Plan[S]
    folder: RunFolder
    parts: PartStore
    quiet: bool = False
    _open: dict[str, Model] = field(default_factory=dict, repr=False)
    _done: dict[str, Part] = field(default_factory=dict, repr=False)

    @property
    def settings(self) -> S:
        """Of the tier."""
        return self.plan.settings

    @property
    def seeds(self) -> tuple[int, ...]:
        """To draw data and initial weights from."""
        return self.plan.seeds

    @property
    def earlier(self) -> tuple[float, float]:
        """Seconds, and seconds of processor time, spent on parts before this run was interrupted."""
        stored = [part for part in self._done.values() if not part.fresh]
        return sum(part.seconds for part in stored), sum(part.processor for part in stored)

    def model(self, role: str) -> Model:
        """The model in a role, opened when first asked for; the one opened before it is let go.

        Raises:
            UnknownName: no such role. UnknownModel, DownloadFailed: as `mechanome.load`.
        """
        from mechanome.engine import load

        if role not in self.plan.models:
            raise UnknownName(f"model role '{role}'", "the study names no such role", nearest(role, self.plan.models))
        if role not in self._open:
            self._open.clear()
            self._open[role] = load(self.plan.models[role], self.plan.scale.device, self.plan.scale.dtype)
        return self._open[role]

    def part(self, name: str, make: Callable[[], Any]) -> Any:
        """One piece of work, done once: see `each`."""
        return self.each(name, [""], lambda _: make())[0]

    def each(self, what: str, items: Iterable[K], make: Callable[[K], Any]) -> list[Any]:
        """One part for every item, in order, with progress; those that an interrupted run finished are read.

        Args:
            what: the work in a few words.
            items: seeds, models, layers ...; their texts name the parts.
            make: from an item to a nest of tensors, arrays, numbers, texts, lists and dictionaries. Every random
                generator is seeded from the part's name before it is called.

        Raises:
            BadInput: two items of one text, a name that was used before, or a value that no file can hold.
        """
        wanted = list(items)
        names = [f"{what} {item}".strip() for item in wanted]
        if clash := next((n for i, n in enumerate(names) if n in self._done or n in names[:i]), None):
            raise BadInput(f"part '{clash}'", "there is one of that name", "name the work differently")
        values = []
        with Bar(f"{self.plan.study.name}: {what}", len(wanted), self.quiet) as bar:
            for name, item in zip(names, wanted):
                part = self.parts.get(name, partial(make, item))
                if part.fresh:
                    self.folder.log(len(self._done), {"part": name, "seconds": round(part.seconds, 3)})
                    bar.advance()
                else:
                    bar.skip(1)
                self._done[name] = replace(part, value=None)
                values.append(part.value)
        return values
