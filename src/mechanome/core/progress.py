"""Progress: a bar for work that is counted, a line for each stage of work that is not.

A bar is silent for two seconds, then shows what, how far, how fast and how long still. Where nobody watches (standard
error is not a terminal) there are no bars, and only stages that took long leave a line. Everything goes to standard
error, so that standard output stays clean for results; inside :func:`silence` nothing is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

T = TypeVar("T")

PATIENCE = 2.0
"""Seconds of work before anything is shown."""

LONG = 5.0
"""Seconds from which a stage leaves a line where nobody watches."""

_silent: ContextVar[bool] = ContextVar("mechanome_silent", default=False)


@contextmanager
def silence() -> Iterator[None]:
    """No progress and no notices inside the block."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def notice(message: str) -> None:
    """Tell the user something that is no error, on standard error."""
    if not _silent.get():
        Console(stderr=True).print(Text("note: ", style="yellow") + Text(message), soft_wrap=True)


@contextmanager
def stage(what: str, quiet: bool = False, console: Console | None = None) -> Iterator[None]:
    """Tell of a piece of work of unknown length: at once on a terminal, elsewhere afterwards and only if it took long.

    Args:
        what: the work in a few words.
        quiet: never show anything.
        console: where to show; standard error if not given.
    """
    console = console or Console(stderr=True)
    heard = not quiet and not _silent.get()
    if heard and console.is_terminal:
        console.print(Text(f"{what} ...", style="dim"), soft_wrap=True)
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    if heard and not console.is_terminal and seconds >= LONG:
        console.print(Text(f"{what}: {_clock(seconds)}"), soft_wrap=True)


class Bar:
    """Counts work, and shows the count once it has taken a while.

    Args:
        what: the work in a few words.
        total: how many pieces, None if unknown.
        quiet: never show anything.
        console: where to show; standard error if not given.
    """

    def __init__(
        self, what: str, total: int | None = None, quiet: bool = False, console: Console | None = None
    ) -> None:
        self.what, self.total, self.done = what, total, 0
        self._skipped = 0
        self._console = console or Console(stderr=True)
        self._watched = self._console.is_terminal and not quiet and not _silent.get()
        self._start = time.monotonic()
        self._rich: Progress | None = None

    def skip(self, pieces: int) -> None:
        """Count pieces finished in an earlier run: they show, but say nothing about the pace."""
        self.done += pieces
        self._skipped += pieces

    def pace(self) -> str:
        """How fast, and how long still: ``"12.5/s, 1:20 left"``."""
        worked = self.done - self._skipped
        if worked == 0:
            return ""
        each = (time.monotonic() - self._start) / worked
        speed = f"{each:.1f} s each" if each > 1 else f"{1 / max(each, 1e-9):.1f}/s"
        return speed if self.total is None else f"{speed}, {_clock(each * (self.total - self.done))} left"

    def advance(self, pieces: int = 1, remark: str = "") -> None:
        """Count finished pieces; ``remark`` (such as the loss) is shown at the end of the line."""
        self.done += pieces
        if not self._watched:
            return
        if self._rich is None:
            if time.monotonic() - self._start < PATIENCE:
                return
            self._rich = self._open()
        self._rich.update(self._rich.task_ids[0], completed=self.done, remark=remark)

    def close(self) -> None:
        """Remove the line."""
        if self._rich is not None:
            self._rich.stop()
            self._rich = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> Progress:
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _Pace(self),
            TextColumn("{task.fields[remark]}", markup=False),
        ]
        display = Progress(*columns, console=self._console, transient=True)
        display.add_task(self.what, total=self.total, remark="")
        display.start()
        return display


class _Pace(ProgressColumn):
    """The bar's own pace: the work began before the line appeared, which the display cannot know."""

    def __init__(self, bar: Bar) -> None:
        super().__init__()
        self._bar = bar

    def render(self, task: Task) -> Text:
        return Text(self._bar.pace())


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def track(
    iterable: Iterable[T], what: str, total: int | None = None, quiet: bool = False, console: Console | None = None
) -> Iterator[T]:
    """Iterate with a progress line.

    Args:
        iterable: the pieces of work.
        what: the work in a few words.
        total: how many pieces; taken from ``len`` where it has one.
        quiet: never show anything.
        console: where to show; standard error if not given.

    Yields:
        the items, unchanged.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    with Bar(what, total, quiet, console) as bar:
        for item in iterable:
            yield item
            bar.advance()
