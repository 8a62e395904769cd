"""What an opened network is: its parts, the sites it serves, and how inputs become its arguments.

`Model` adds the work that can be done with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mechanome.core.errors import BadInput, NotServed, UnknownSite
from mechanome.engine import attention, taps
from mechanome.engine.architecture import Architecture
from mechanome.engine.arguments import call_arguments, with_frames_of_sound
from mechanome.engine.discovery import discover
from mechanome.engine.families import Layout
from mechanome.engine.frame import Frame
from mechanome.engine.habits import MODEL, hint
from mechanome.engine.inputs import Batch, Bos, Encodes, Inputs, Spans, encode, token_strings
from mechanome.engine.points import POINTS
from mechanome.engine.site import Site, expand, parse
from mechanome.engine.tap_rules import tap_for

if TYPE_CHECKING:
    from mechanome.engine.selftest import Report


class Opened:
    """A network with named sites. See `mechanome.engine.model.Model`, which users hold.

    Attributes:
        module: the unmodified PyTorch module.
        tokenizer: its tokenizer, or None.
        architecture: which module plays which part.
        source: where it came from (id, source, hash), or None for a module given by the user.
        bos: what `encode` does about the first token.
        report: what the self-test found, None before it ran.
        volatile: sites whose tensor the model changes in place after computing it; captures copy there.
        wavefront_checked: points whose first wavefront sweep agreed with a plain run.
        weights_version: counts edits of weights, so that nothing resumes from older ones.
    """

    def __init__(
        self,
        module: nn.Module,
        tokenizer: Any = None,
        *,
        layout: Layout | None = None,
        source: Any = None,
        bos: Bos = "auto",
        axes: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.source = source
        self.bos = bos
        self.weights_version = 0
        self.layout = layout
        self.report: Report | None = None
        self.volatile: set[Site] = set()
        self.wavefront_checked: set[str] = set()
        self._refused: dict[Site, str] = {}
        self._read_only: dict[Site, str] = {}
        self._axes = {parse(k): tuple(v) for k, v in (axes or {}).items()}
        self.backends = attention.install(module)
        self.architecture: Architecture = discover(module, layout)
        taps.install(module, "begin")
        self._taps: dict[Site, taps.Tap] = {}
        self._sites: tuple[Site, ...] | None = None
        self._expanded: dict[str | Site, tuple[Site, ...]] = {}
        self._arguments: frozenset[str] | None = None

    # What is there -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """A short name: the source's id, else the class."""
        return getattr(self.source, "id", None) or type(self.core).__name__

    @property
    def core(self) -> nn.Module:
        """The model inside wrappers (PEFT, DDP, compile), for its signature and config."""
        inner: Any = self.module
        while True:
            get = getattr(inner, "get_base_model", None)
            step = get() if callable(get) else getattr(inner, "_orig_mod", None)
            if step is None and type(inner).__name__ in ("DataParallel", "DistributedDataParallel"):
                step = inner.module
            if not isinstance(step, nn.Module) or step is inner:
                return inner
            inner = step

    @property
    def config(self) -> Any:
        """The Transformers config, or None."""
        return getattr(self.core, "config", None)

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives."""
        return next((p.device for p in self.module.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the first parameter."""
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)

    @property
    def n_layers(self) -> int:
        """Blocks of the only tower.

        Raises:
            NotServed: several towers.
        """
        return len(self.architecture.tower(None).blocks)

    def accepts(self, argument: str) -> bool:
        """Whether the model's forward names this argument."""
        if self._arguments is None:
            self._arguments = frozenset(inspect.signature(self.core.forward).parameters)
        return argument in self._arguments

    def weights_state(self) -> tuple[int, int]:
        """Changes whenever this model's weights do, by whatever hand: an optimizer, an edit, another model's."""
        parts = ((p.data_ptr(), 0 if p.is_inference() else p._version) for p in self.module.parameters())
        return id(self.module), hash((self.weights_version, *parts))

    def keep_logits(self, n: int) -> dict[str, int]:
        """The argument that limits logits to the last `n` positions, where the model has it."""
        return {"logits_to_keep": n} if self.accepts("logits_to_keep") else {}

    @property
    def sites(self) -> tuple[Site, ...]:
        """Every whole named site this model serves, in forward order."""
        if self._sites is None:
            self._sites = tuple(s for s in self._all_sites() if self.serves(s))
        return self._sites

    def _all_sites(self) -> Iterable[Site]:
        for tower in self.architecture.towers:
            yield from (Site(p.name, tower=tower.name) for p in POINTS.values() if p.name == "embed")
            for layer in range(len(tower.blocks)):
                yield from (Site(p.name, layer, tower=tower.name) for p in POINTS.values() if p.per_layer)
            yield Site("ln_final", tower=tower.name)
        yield Site("logits")

    def tap(self, site: str | Site) -> taps.Tap:
        """Where a site is read.

        Raises:
            UnknownSite, NotServed: with the reason and the nearest thing that is served.
        """
        site = parse(site)
        if site.whole in self._refused:
            raise NotServed(f"site '{site}'", self._refused[site.whole], "use another site; model.sites lists them")
        key = site if site.selector else site.whole
        if key not in self._taps:
            self._taps[key] = tap_for(self.architecture, site)
        return self._taps[key]

    def why_not_edit(self, site: str | Site) -> str | None:
        """Why a site cannot be edited or differentiated at, or None if it can."""
        site = parse(site)
        if not site.is_path and not POINTS[site.point].writable:
            return "it is derived from z and W_O: use z"
        return self.why_not(site) or self._read_only.get(site.whole)

    def adopt(self, report: Report) -> None:
        """Take over what a self-test found: refuse what failed, copy where tensors change in place."""
        self.report = report
        self._refused = {parse(site): why for site, why in report.refused.items()}
        self._read_only = {parse(site): why for site, why in report.read_only.items()}
        self.volatile = {parse(site) for site in report.volatile}
        self._sites = None
        self._expanded.clear()

    def serves(self, site: str | Site) -> bool:
        """Whether this model can read a site."""
        return self.why_not(site) is None

    def why_not(self, site: str | Site) -> str | None:
        """Why a site cannot be served, or None if it can."""
        try:
            self.tap(site)
        except (NotServed, UnknownSite) as error:
            return str(error)
        return None

    def expand(self, patterns: str | Site | Iterable[str | Site]) -> list[Site]:
        """Sites and globs to sites: `model.expand(["z.*", "resid_post.3-7"])`."""
        if patterns is None:
            raise BadInput("sites", "there are none", "name one, such as 'resid_post.5', or leave the argument out")
        found: dict[Site, None] = {}
        for pattern in [patterns] if isinstance(patterns, (str, Site)) else patterns:
            if not isinstance(pattern, (str, Site)) or pattern not in self._expanded:
                self._expanded[pattern] = tuple(expand(pattern, self.sites))
            found |= dict.fromkeys(self._expanded[pattern])
        return list(found)

    def path_axes(self, site: Site, dims: int) -> tuple[str, ...]:
        """Axis names of a `path:` site: the user's, else a default by number of axes."""
        if site in self._axes:
            return self._axes[site]
        defaults = {2: ("batch", "feature"), 3: ("batch", "pos", "feature"), 4: ("batch", "channel", "height", "width")}
        return defaults.get(dims, tuple(f"axis{i}" for i in range(dims)))

    # Inputs --------------------------------------------------------------------------------------------------

    def encode(self, inputs: Inputs, *, bos: Bos | None = None, spans: Spans = (), pad: Any = "right") -> Batch:
        """Inputs of any kind as a `Batch` for this model; see `mechanome.engine.inputs.encode`.

        Whatever has a `__batch__(model)`, such as a task or an example of one, makes its own.
        """
        batch = encode(
            inputs.__batch__(self) if isinstance(inputs, Encodes) else inputs,
            self.tokenizer,
            bos=self.bos if bos is None else bos,
            spans=spans,
            pad=pad,
            device=self.device,
            max_length=self.context,
            vocab_size=getattr(self.text_config, "vocab_size", None),
        )
        return with_frames_of_sound(self, batch)

    @property
    def text_config(self) -> Any:
        """The part of the config that describes the language model."""
        return getattr(self.config, "text_config", None) or self.config

    @property
    def context(self) -> int | None:
        """The longest prompt in tokens, if the config says."""
        limit = getattr(self.text_config, "max_position_embeddings", None)
        return int(limit) if isinstance(limit, int) else None

    def str_tokens(self, inputs: Inputs) -> list[str] | list[list[str]]:
        """Readable tokens of a prompt, or of each of several, as the model will see them."""
        batch = self.encode(inputs)
        rows = [list(row) for row in batch.tokens]
        return rows[0] if len(rows) == 1 and isinstance(inputs, str) else rows

    def single_token(self, text: str) -> int:
        """The id of a text that is exactly one token.

        Raises:
            BadInput: several tokens, with what they are.
        """
        if self.tokenizer is None:
            raise BadInput(f"token {text!r}", "this model came without a tokenizer", "pass ids")
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            parts = token_strings(self.tokenizer, ids)
            raise BadInput(
                f"token {text!r}",
                f"it is {len(ids)} tokens: {parts}",
                "choose a one-token text, often with a leading space",
            )
        return int(ids[0])

    def frames(self, batch: Batch) -> dict[str | None, Frame]:
        """Per tower, where real tokens are."""
        if len(self.architecture.towers) <= 1:
            return {None: batch.frame}
        unknown = Frame.unknown(batch.rows)
        main = {"decoder": batch.frame, "text": batch.frame}
        named: dict[str | None, Frame] = {t.name: main.get(str(t.name), unknown) for t in self.architecture.towers}
        return {None: batch.frame, **named, **batch.frames}

    def arguments(self, batch: Batch) -> dict[str, Any]:
        """What the model's forward is called with; see `mechanome.engine.arguments.call_arguments`."""
        return call_arguments(self, batch)

    def __getattr__(self, name: str) -> Any:
        raise hint("a model", name, MODEL)

    def __repr__(self) -> str:
        parts = [f"{t.name or 'one tower'}: {len(t.blocks)} blocks" for t in self.architecture.towers] or [
            "path: sites only"
        ]
        return f"Model({self.name}, {', '.join(parts)}, {self.dtype}, {self.device})"
