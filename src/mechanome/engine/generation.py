"""Generation under edits, with captures: the model's own loop runs unmodified, a plan follows it pass by pass.

The rule of steps: the state at position p predicts the token at position p + 1. Step s is the state that
predicts generated token s, so step 0 is the last prompt token (for a decoder behind an encoder: the last token
of its decoder prompt), and the last token generated has no state. Edits name positions in real tokens
(`pos=-1` is the last prompt token at every step, `phase="decode"` the generated tokens, `steps=[0]` the state that
predicts the first), and mean the same with and without a key/value cache, padding and other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.core.tables import Table
from mechanome.engine.asked import count, names, token_ids
from mechanome.engine.decoding import WARPERS, Eos, configure, end_tokens, loop_of, sampler
from mechanome.engine.edits import Edit, flatten
from mechanome.engine.following import Follow, OnToken, Reduce
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch, Inputs, Spans
from mechanome.engine.model import Model
from mechanome.engine.plan import activate
from mechanome.engine.prompts import Prompt, prepare
from mechanome.engine.run import Run
from mechanome.engine.site import Site, parse
from mechanome.engine.worlds import by_position


@dataclass(frozen=True)
class Generation:
    """What one call of `generate` produced; rows are prompts.

    Attributes:
        batch: the prompts, as the model saw them.
        tokens: per row, the new ids; an end token that was generated is the last of them.
        texts: per row, the new text without special tokens; empty strings without a tokenizer.
        logprobs: per row, fp32 `[step]`: log-probability of each new token under the edited model, before
            temperature, truncation and penalties.
        finish: per row, why it ended: "eos", "stop" (a stop string) or "length".
        captured: per site, what was kept; use `generation[site]`.
        pos: None where captures are the states that predict the new tokens.
        once: sites that were kept once, whole, because they do not grow.
        seeds: per row, the seed its tokens were drawn with; empty for greedy and beam search.
        notes: settings that came from the model's own configuration.
    """

    model: Model = field(repr=False)
    batch: Batch = field(repr=False)
    tokens: list[list[int]]
    texts: list[str]
    logprobs: list[Tensor] = field(repr=False)
    finish: list[str]
    captured: dict[Site, Tensor] = field(repr=False)
    pos: Positions = None
    once: frozenset[Site] = field(default=frozenset(), repr=False)
    seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """The captured sites."""
        return tuple(self.captured)

    def __getitem__(self, site: str | Site) -> Tensor:
        """A captured site, axes as `axes(site)` says; NaN behind a row's last step.

        Raises:
            UnknownSite: a site that was not captured.
        """
        return self._run(parse(site))[site]

    def axes(self, site: str | Site) -> tuple[str, ...]:
        """Axis names of `generation[site]`: `row step ...`; positions for prompt captures and encoder sites.

        Keys of scores and patterns are real-token positions; NaN where a key was not visible yet or any more.
        """
        site = parse(site)
        names = self._run(site).axes(site)
        stepped = self.pos is None and not self._whole(site)
        change = {"batch": "row"} | ({"pos": "step", "query": "step"} if stepped else {})
        return tuple(change.get(n, n) for n in names)

    def _whole(self, site: Site) -> bool:
        return site in self.once or site.whole in self.once

    def _run(self, site: Site) -> Run:
        return Run(self.model, self.batch, None, self.captured, None if self._whole(site) else self.pos)

    def table(self) -> Table:
        """One row per prompt: what was generated, how it ended, and the mean log-probability of its tokens."""
        shown = [text or " ".join(map(str, ids)) for text, ids in zip(self.texts, self.tokens)]
        means = [float(values.mean()) for values in self.logprobs]
        rows = zip(range(len(shown)), shown, map(len, self.tokens), self.finish, means)
        return Table(("row", "new", "tokens", "finish", "mean log-prob"), list(rows), "Generation")

    def __repr__(self) -> str:
        sites = [f"  {s}  {' '.join(self.axes(s))}  {list(self[s].shape)}" for s in self.captured]
        return "\n".join([self.table().text(), *sites, *(f"  note: {n}" for n in self.notes)])

    def _repr_html_(self) -> str:
        return self.table().html()


def generate(
    model: Model,
    inputs: Inputs,
    *,
    max_new_tokens: int = 32,
    edits: Edit | Iterable[Edit | Iterable[Edit]] = (),
    capture: str | Site | Iterable[str | Site] = (),
    pos: Positions = None,
    reduce: Reduce | None = None,
    to: torch.device | torch.dtype | str | None = None,
    spans: Spans = (),
    do_sample: bool | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] | None = None,
    num_beams: int = 1,
    stop: str | Sequence[str] = (),
    eos: Eos = "auto",
    on_token: OnToken | None = None,
    cache: bool = True,
    **settings: Any,
) -> Generation:
    """Continue prompts with the model's own generation loop, under edits; each row as if it were alone.

    Args:
        inputs: text, chats, ids, a mapping of tensors or a `Batch`; rows of different length are padded on the left.
        max_new_tokens: at most so many per row.
        edits: what to change, at every pass; see the rule of steps at the top of this module.
        capture: sites and globs. Encoder sites and cross-attention keys and values are kept once, whole.
        pos: None keeps the state that predicts each new token, `[row, step, ...]`; prompt positions keep those.
        reduce: receives each step's captures of the rows still running, and nothing is stored: an object with
            `update(site, x)` or a function of `(site, step, x)`, with x `[row, ...]`.
        to: device or dtype that captures are moved to at once.
        spans: labels for positions, one mapping per prompt.
        do_sample: None draws tokens exactly if `temperature`, `top_k` or `top_p` (or `min_p`, `typical_p`,
            `epsilon_cutoff`) is given; what is not given is the model's own setting. Otherwise tokens are greedy.
        seed: row r draws from `seed + r` (or from its own of a list), whatever else happens in the process.
        num_beams: above 1, beam search; each beam is edited as its prompt's row.
        stop: strings that end a row when they appear in its new text; they stay in it.
        eos: ids that end a row; "auto" asks the model, None lets rows run on.
        on_token: called with `(row, step, id)` for each new token.
        cache: False recomputes the whole sequence at each step: the same result, slower.
        settings: further settings of the model's loop, such as `repetition_penalty` or `length_penalty`.

    Raises:
        BadInput: prompts and `max_new_tokens` beyond the context, contradictory settings.
        NotServed: no generation loop, or a setting under which a step is not one state of one pass.
    """
    loop = loop_of(model)
    max_new_tokens, num_beams = count("max_new_tokens", max_new_tokens), count("num_beams", num_beams)
    stops = names("stop", stop)
    ends = end_tokens(model, _ends(eos))
    _check_kinds(reduce, to, on_token)
    prompt = prepare(model, inputs, spans)
    _check_source(model, prompt)
    _fits(model, prompt, max_new_tokens)
    shape = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    shape |= {name: settings.pop(name) for name in list(settings) if name in WARPERS}
    draw, seeds = sampler(model, shape, do_sample, seed, prompt.batch.rows)
    asked = model.expand(capture)
    sites = _distinct(asked)
    todo = by_position(flatten(edits))
    _check(
        model, num_beams, stops, pos, asked, todo, drawn=draw is not None, reduced=reduce is not None, heard=on_token
    )
    config, notes = configure(
        model, settings, max_new_tokens=max_new_tokens, num_beams=num_beams, eos=ends, cache=cache
    )
    follow = Follow(model, prompt, num_beams, sites, pos, reduce, to, on_token, ends, stops)
    arguments = dict(prompt.arguments)
    if model.accepts("logits_to_keep") and any(s.point == "logits" for s in [*sites, *(e.site for e in todo)]):
        arguments["logits_to_keep"] = 0  # all: the loop itself asks for the last only, where positions are unknown
    with activate(follow.plan(todo)):
        output = loop(
            **arguments,
            generation_config=config,
            stopping_criteria=[follow],
            logits_processor=[] if draw is None else [draw],
        )
    if num_beams > 1:
        steps = output.beam_indices.shape[1]
        follow.settle(output.sequences[:, -steps:], output.beam_indices)
    decode = getattr(model.tokenizer, "decode", None)
    return Generation(
        model,
        prompt.batch,
        follow.tokens,
        [decode(ids, skip_special_tokens=True) if decode else "" for ids in follow.tokens],
        [torch.tensor(row, dtype=torch.float32) for row in follow.logprobs],
        [why or "length" for why in follow.finish],
        follow.collected(),
        pos,
        frozenset(follow.once),
        seeds,
        notes,
    )


def _fits(model: Model, prompt: Prompt, new: int) -> None:
    context = getattr(model.config, "max_target_positions", None) or model.context
    longest = max(prompt.main.lengths)
    if context is not None and longest + new - 1 > context:  # the last token is never read
        room = max(0, context - longest + 1)
        raise BadInput(
            f"max_new_tokens={new} after a prompt of {longest} tokens",
            f"the model's context is {context}",
            f"ask for at most {room}" if room else "shorten the prompt",
        )


def _ends(eos: Eos) -> Eos:
    if eos is None or (isinstance(eos, str) and eos == "auto"):
        return eos
    found: list[int] = token_ids("eos", eos, "give 'auto', an id, a list of ids, or None").tolist()
    return found


def _check_source(model: Model, prompt: Prompt) -> None:
    """Refuse token ids for a model that reads sound or images."""
    if "input_ids" in prompt.arguments and not model.accepts("input_ids"):
        source = getattr(model.core, "main_input_name", "input_features")
        raise BadInput(
            f"token ids for {type(model.core).__name__}",
            f"it reads {source}",
            f"pass {{'{source}': tensor}}, with 'decoder_input_ids' for a decoder prompt",
        )


def _check_kinds(reduce: Any, to: Any, on_token: Any) -> None:
    """Refuse arguments that are of no kind the loop can use, before it starts."""
    if reduce is not None and not callable(reduce) and not callable(getattr(reduce, "update", None)):
        raise BadInput(f"reduce={reduce!r}", "it can neither be called nor updated", "give a function or accumulator")
    if on_token is not None and not callable(on_token):
        raise BadInput(f"on_token={on_token!r}", "it cannot be called", "give a function of (row, step, id)")
    try:
        torch.empty(0).to(to) if to is not None else None
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"to={to!r}", "it is no device or dtype that is here", "use 'cpu' or torch.float16") from error


def _distinct(sites: Iterable[Site]) -> list[Site]:
    return list(dict.fromkeys(replace(s, point="z") if s.point == "head_out" else s for s in sites))


def _check(
    model: Model,
    beams: int,
    stops: Sequence[str],
    pos: Positions,
    sites: Sequence[Site],
    edits: Sequence[Edit],
    *,
    drawn: bool,
    reduced: bool,
    heard: Callable[..., object] | None,
) -> None:
    """Refuse what contradicts itself or the rule of steps."""
    if beams > 1:
        clashes = {"sampling": drawn, "reduce": reduced, "on_token": heard is not None}
        for what in (name for name, clash in clashes.items() if clash):
            raise NotServed(f"{what} in a beam search", "only its end decides which beams count", "use num_beams=1")
    if stops and (model.tokenizer is None or not all(stops)):
        raise BadInput("stop strings", "they need a tokenizer, and none may be empty", "use eos= with token ids")
    if isinstance(pos, str) and pos in ("all", "generated"):
        raise BadInput(
            f"captures at '{pos}' positions",
            "a generated token's state is the one that predicts the next token",
            "leave pos out, and capture 'prompt' in a second call",
        )
    if reduced and any(s.point == "head_out" for s in sites):
        raise NotServed("head_out with reduce", "it is derived from z", "reduce z")
    for edit in edits:
        if edit.site.is_path and edit.where.steps is not None:
            raise NotServed(f"steps of {edit.site}", "a path's steps count its calls", "use phase= or a named point")
