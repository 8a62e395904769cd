"""The self-test at load: what a model is said to serve is checked on the model itself, with a few tiny passes.

Checked: reading changes nothing; each named site fires exactly once per pass; an edit there moves the output;
padded rows equal unpadded ones; what the parts add sums to the residual stream. What fails is refused from then
on, by name and with the reason. Results are cached by class, config, versions, dtype and device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn

from mechanome.core.errors import MechanomeError, NotServed
from mechanome.core.formats import read_json, write_json
from mechanome.engine import resume
from mechanome.engine.consistency import liars
from mechanome.engine.edits import Edit
from mechanome.engine.examples import example_batch
from mechanome.engine.inputs import Batch
from mechanome.engine.operations import Capture
from mechanome.engine.plan import Plan
from mechanome.engine.registry.cache import Cache
from mechanome.engine.run import build_plan, execute
from mechanome.engine.site import Site
from mechanome.engine.taps import logits_of, temporary
from mechanome.version import __version__

if TYPE_CHECKING:
    from mechanome.engine.model import Model

_FORMAT = 2  # raised when the test itself changes, so that older results are not believed
_TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}


@dataclass
class Report:
    """What the self-test found.

    Attributes:
        refused: site -> why it is not served although the architecture has it.
        read_only: site -> why it can be read but not edited.
        volatile: sites whose tensor the model changes in place afterwards; captures copy there.
        additive: tower (or "") -> largest relative error of `stream before + parts = stream after`.
        backend_error: relative difference between the plain model and the same pass with every site read.
        padding_error, left_padding_error: relative difference between rows padded on the right, or on the left, and
            unpadded rows; None without padding. Where it is more than rounding, batches padded so are refused.
        features: point -> axes sizes after batch and position, for memory estimates.
        passes: forward passes used; 0 when the result came from the cache.
    """

    refused: dict[str, str] = field(default_factory=dict)
    read_only: dict[str, str] = field(default_factory=dict)
    volatile: list[str] = field(default_factory=list)
    additive: dict[str, float] = field(default_factory=dict)
    backend_error: float = 0.0
    padding_error: float | None = None
    left_padding_error: float | None = None
    features: dict[str, list[int]] = field(default_factory=dict)
    passes: int = 0

    @classmethod
    def read(cls, record: Any) -> Report:
        """A report from its record.

        Raises:
            TypeError: it is not the record of a report.
        """
        report, plain = cls(**record), cls()
        wrong = [n for n, v in vars(plain).items() if v is not None and type(getattr(report, n)) is not type(v)]
        if wrong:
            raise TypeError(f"{wrong[0]} is a {type(getattr(report, wrong[0])).__name__}")
        return replace(report, passes=0)


def self_test(model: Model, check: str = "full", example: Any = None) -> Report:
    """Test a model; see the module's docstring.

    Args:
        model: what to test.
        check: "full", or "light" (no test of each point's edit, for very large models).
        example: inputs to test on, for modules whose inputs cannot be guessed.

    Returns:
        the report; with nothing in it if no example can be made.

    Raises:
        NotServed: reading changes the model's own output, so nothing can be trusted.
    """
    batch = example_batch(model) if example is None else model.encode(example)
    if batch is None:
        return Report()
    cached = _cache_file(model, check) if example is None else None
    if cached is not None and cached.is_file():
        try:
            return Report.read(read_json(cached))
        except (MechanomeError, TypeError, OSError):
            pass  # damaged or not readable: test again
    with _evaluating(model.module), temporary(model.module):
        report = _Test(model, batch).run(check)
    if cached is not None:
        # A cache that cannot be written only means that the test runs again next time.
        with suppress(OSError):
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_json(cached, asdict(report))
    return report


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout while testing; every submodule's own flag is restored."""
    flags = [(m, m.training) for m in module.modules()]
    try:
        module.eval()
        yield
    finally:
        for m, training in flags:
            m.training = training


def _cache_file(model: Model, check: str) -> Path | None:
    patched = any("forward" in vars(m) and not resume.is_wrapped(m) for m in model.module.modules())
    if model.config is None or model.layout is not None or patched:
        return None
    facts = {
        "format": _FORMAT,
        "class": type(model.core).__qualname__,
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "versions": [__version__, torch.__version__, transformers.__version__],
        "where": [str(model.dtype), model.device.type, sorted(set(model.backends.values())), check],
        "modules": hashlib.sha256(
            "\n".join(f"{n}: {type(m)}" for n, m in model.module.named_modules()).encode()
        ).hexdigest(),
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
    return Cache.current().root / "selftest" / f"{key}.json"


class _Test:
    """One self-test."""

    def __init__(self, model: Model, batch: Batch) -> None:
        self.model, self.batch, self.report = model, batch, Report()
        self.tolerance = _TOLERANCE.get(model.dtype, 2e-2)

    def run(self, check: str) -> Report:
        plain, logits = self._forward(Plan(root=self.model.module))
        if logits is None:
            self.report.refused["logits"] = "the model's output holds no logits"
        captures = self._read(plain, logits is not None)
        self._additive(captures)
        found = liars(self.model.architecture, captures, self._real)
        self.report.refused |= {str(site): why for site, why in found.items()}
        captures = {site: value for site, value in captures.items() if site not in found}
        if logits is not None and logits.dim() == 3 and self._only_tokens():
            self._padding()
        # A speech encoder reads half a minute of sound in each pass: its edits are not tried point by point.
        if check == "full" and "input_features" not in self.batch.arguments:
            for site in _one_layer_each(list(captures)):
                self._edit(site, plain)
        return self.report

    def _forward(self, plan: Plan) -> tuple[Tensor, Tensor | None]:
        """Everything the model returns for real tokens, as one tensor; and its logits."""
        self.report.passes += 1
        with torch.no_grad():
            output = execute(self.model, self.batch, plan)
        logits = logits_of(output)
        if logits is not None:
            return self._real(logits).float(), logits
        values = output.values() if hasattr(output, "values") else output
        tensors = [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]
        return torch.cat([self._real(v).float().flatten() for v in tensors]), None

    def _real(self, logits: Tensor) -> Tensor:
        """Without padding: what a fully masked query holds differs between backends and means nothing."""
        frame = self.batch.frame
        if logits.dim() != 3 or logits.shape[1] != frame.width or logits.shape[0] != frame.rows:
            return logits
        rows = [logits[r, s : s + n] for r, (s, n) in enumerate(zip(frame.starts, frame.lengths))]
        return torch.cat(rows)

    def _read(self, plain: Tensor, has_logits: bool) -> dict[Site, Tensor]:
        sites = [s for s in self.model.sites if s.point != "head_out" and (has_logits or s.point != "logits")]
        captures = [Capture(site) for site in sites]
        output, _ = self._forward(build_plan(self.model, captures))
        if fresh := [c.site for c in captures if c.changed()]:
            self.report.volatile = [str(site) for site in fresh]
            captures = [Capture(site, copy=site in fresh) for site in sites]
            output, _ = self._forward(build_plan(self.model, captures))
        self.report.backend_error = _relative(output, plain)
        if not self.report.backend_error <= self.tolerance:
            raise NotServed(
                f"{self.model.name} on {self.model.device}",
                f"reading its sites changes its output by {self.report.backend_error:.1e}",
                "load it with attn_implementation='sdpa' or 'eager', or give a Layout",
            )
        found = {}
        for capture in captures:
            if capture.calls != 1:
                times = "never ran" if capture.calls == 0 else f"ran {capture.calls} times"
                twins = [capture.site] + (
                    [replace(capture.site, point="head_out")] if capture.site.point == "z" else []
                )
                self.report.refused |= {str(site): f"its module {times} in one forward pass" for site in twins}
            else:
                found[capture.site] = capture.values[0]
                self.report.features.setdefault(_point_key(capture.site), list(capture.values[0].shape[2:]))
        return found

    def _additive(self, found: dict[Site, Tensor]) -> None:
        for tower in self.model.architecture.towers:
            errors = []
            for layer in range(len(tower.blocks)):
                parts = ("resid_pre", "attn_out", "cross_out", "mixer_out", "mlp_out", "resid_post")
                have = {p: found.get(Site(p, layer, tower=tower.name)) for p in parts}
                before, after = have.pop("resid_pre"), have.pop("resid_post")
                added = [v for v in have.values() if v is not None]
                if before is not None and after is not None and added:
                    total = before.float() + sum(v.float().reshape(before.shape) for v in added)
                    errors.append(_relative(self._real(total), self._real(after.float())))
            if errors:
                self.report.additive[tower.name or ""] = max(errors)

    def _only_tokens(self) -> bool:
        return self.batch.frame.padded and self.batch.arguments.keys() <= {"input_ids", "attention_mask"}

    def _padding(self) -> None:
        frame, ids = self.batch.frame, self.batch.input_ids
        rows = [ids[r, s : s + n].tolist() for r, (s, n) in enumerate(zip(frame.starts, frame.lengths))]
        alone = [self._logits(self.model.encode([row], bos="none")) for row in rows]
        self.report.padding_error = self._apart(alone, rows, "right")
        self.report.left_padding_error = self._apart(alone, rows, "left")

    def _apart(self, alone: list[Tensor], rows: list[list[int]], side: str) -> float:
        batch = self.model.encode(rows, bos="none", pad=side)
        logits, frame = self._logits(batch), batch.frame
        parts = [logits[r, s : s + n] for r, (s, n) in enumerate(zip(frame.starts, frame.lengths))]
        return _relative(torch.cat(parts), torch.cat([one[0] for one in alone]))

    def _logits(self, batch: Batch) -> Tensor:
        self.report.passes += 1
        with torch.no_grad():
            logits = logits_of(execute(self.model, batch, Plan(root=self.model.module)))
        assert logits is not None
        return logits.float()

    def _edit(self, site: Site, plain: Tensor) -> None:
        if site.layer is not None and site.layer + 1 == len(self.model.architecture.tower(site.tower).blocks):
            return  # what a last block computes for positions nobody reads may well not matter
        try:
            moved, _ = self._forward(build_plan(self.model, [], [Edit(site, "custom", function=_bend)]))
            why = None if _relative(moved, plain) > 0 else "an edit there does not change the output"
        except (MechanomeError, RuntimeError) as error:
            why = f"an edit there fails: {error}"
        if why is not None:
            same = [s for s in self.model.sites if s.point == site.point and s.tower == site.tower]
            self.report.read_only |= {str(s): why for s in same}


def _bend(x: Tensor) -> Tensor:
    """Another direction and another length: what follows may well normalize away a change of length alone."""
    return x * torch.linspace(0.5, 1.5, x.shape[-1], device=x.device).to(x.dtype)


def _point_key(site: Site) -> str:
    return f"{site.tower}/{site.point}" if site.tower else site.point


def _one_layer_each(sites: Sequence[Site]) -> list[Site]:
    """For each point and tower, its first layer: enough to see that an edit reaches the output."""
    seen: dict[tuple[str, str | None], Site] = {}
    for site in sites:
        seen.setdefault((site.point, site.tower), site)
    return list(seen.values())


def _relative(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape:
        return float("inf")
    scale = b.abs().max().clamp(min=1e-12)
    return float((a - b).abs().max() / scale)
