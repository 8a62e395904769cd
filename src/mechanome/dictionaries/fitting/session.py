"""Several dictionaries learning from one stream: the step that the fit loop calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import psutil

from mechanome.activations import Activations
from mechanome.dictionaries.fitting.ends import Ends, Sites, normalized
from mechanome.dictionaries.fitting.history import History
from mechanome.dictionaries.fitting.trainee import Trainee
from mechanome.dictionaries.norm import Affine

OnMetrics = Callable[[int, dict[str, float]], None]


class Session:
    """One step of all.

    Args:
        names: of the dictionaries.
        trainees: the dictionaries.
        ends: where each reads and writes.
        norms: of each tuple of sites.
        widths: of each site.
        length: steps of the fit.
        log_every: steps between records; the last step is one in any case.
        on_metrics: told each record, as (steps done, metrics).
    """

    def __init__(
        self,
        names: Sequence[str],
        trainees: Sequence[Trainee],
        ends: Sequence[Ends],
        norms: Mapping[Sites, Affine],
        widths: Mapping[str, int],
        length: int,
        log_every: int,
        on_metrics: OnMetrics | None,
    ) -> None:
        self.names, self.trainees, self.ends, self.norms, self.widths = names, trainees, ends, norms, widths
        self.length, self.log_every, self.on_metrics = length, log_every, on_metrics
        self.history = History(len(trainees))
        self._clock, self._rows = time.monotonic(), 0
        self._begun, self._all = self._clock, 0
        self._process = psutil.Process()

    def step(self, batch: Activations) -> dict[str, float]:
        """Let every dictionary learn from a batch; returns the means of their metrics, and pace and memory to show."""
        rows = normalized(batch, self.norms, self.widths)
        each = []
        for trainee, ends in zip(self.trainees, self.ends):
            metrics = trainee.step(rows[ends.read], rows[ends.written])
            each.append({name: float(value) for name, value in metrics.items()})
        self._rows, self._all = self._rows + batch.rows, self._all + batch.rows
        done = self.trainees[0].steps
        if done % self.log_every == 0 or done == self.length:
            self._log(done, each)
        means = {name: sum(metrics[name] for metrics in each) / len(each) for name in each[0]}
        # A mean does not say whose loss broke; the loop refuses, and names, what is not finite.
        broken = {f"loss of {n}": m["loss"] for n, m in zip(self.names, each) if not math.isfinite(m["loss"])}
        shown = {
            "rows/s": self._all / max(time.monotonic() - self._begun, 1e-9),
            "GB": self._process.memory_info().rss / 1e9,
        }
        return {**means, **broken, **shown}

    def _log(self, done: int, each: Sequence[Mapping[str, float]]) -> None:
        now = time.monotonic()
        speed = self._rows / max(now - self._clock, 1e-9)
        self._clock, self._rows = now, 0
        seen = float(self.trainees[0].rows)
        self.history.add([{"step": float(done), "rows": seen, **m, "rows_per_second": speed} for m in each])
        if self.on_metrics is not None:
            several = len(each) > 1
            named = [(f"{n}/" if several else "", m) for n, m in zip(self.names, each)]
            flat = {f"{prefix}{key}": value for prefix, m in named for key, value in m.items()}
            self.on_metrics(done, {**flat, "rows": seen, "rows_per_second": speed})
