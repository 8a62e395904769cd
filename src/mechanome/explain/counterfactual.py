"""An automatic counterfactual: the prompt with one token swapped for another of its kind, so that the answer changes.

A swap is worth something if three things hold. The new token must be a real alternative: among those the model itself
expects at that place, the nearest to the old one in the embedding (France: Italy, Spain, England). The prompt must
stay plausible. And the answer must lose. Swaps after which the model says something else come first; among them they
are ranked by what the answer loses minus what the prompt's log-probability loses, both in nats, each measured exactly.
The last token is swapped only if no other one helps, because that asks another question rather than the same question
about something else.

A prompt with many alternatives is searched in two rounds: the nearest alternative of each token, then all alternatives
of the tokens where that did most. (A gradient does not tell them apart: measured, it has no rank correlation with what
a swap does.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from mechanome.core import BadInput
from mechanome.engine import Batch, Model
from mechanome.engine.resume import shared_prefix
from mechanome.explain.tokens import Token

PER_POSITION = 8
"""Alternatives tried for one token."""
EXPECTED = 2000
"""An alternative is among this many tokens that the model expects most."""
SIMILAR = 0.25
"""Least cosine of two tokens of one kind, in the embedding without its six widest directions."""
WIDEST = 6
MOVES = 2.0
"""A swap counts if the answer loses at least this much, in nats of log-odds (a factor of seven)."""
TOKENS = 600
"""All alternatives are tried at once if that runs at most this many tokens, else in two rounds."""
SCANNED = 48
"""Tokens that the first round tries, the last ones of the prompt; none before them is run again."""
LOGITS = 25e6
"""Numbers in the largest tensor: the logits of all positions of the swaps tried at once."""
FOLLOWED = 4
"""Tokens whose other alternatives are tried in the second round."""

Score = Callable[[Tensor], Tensor]
"""Next-token logits `[row, vocab]` to how strongly they favor the answer `[row]`, in nats."""


@dataclass(frozen=True)
class Swap:
    """One token replaced by another.

    Args:
        position: where, in tokens.
        old: what the prompt has there.
        new: what the counterfactual has there.
        loss: what the answer loses, in nats.
        plausibility: log-probability of the counterfactual's text minus that of the prompt's, in nats.
        flips: whether the likeliest next token is another one.
    """

    position: int
    old: Token
    new: Token
    loss: float
    plausibility: float
    flips: bool = True

    @property
    def worth(self) -> float:
        """What the answer loses, minus what plausibility loses."""
        return self.loss + min(0.0, self.plausibility)

    def __str__(self) -> str:
        return f"{self.old} for {self.new}"


def log_odds(answer: int) -> Score:
    """Log-odds of one token against all others, in nats."""

    def score(logits: Tensor) -> Tensor:
        rest = logits.clone()
        rest[:, answer] = float("-inf")
        return logits[:, answer] - rest.logsumexp(-1)

    return score


def difference(answer: int, foil: int) -> Score:
    """Logit of one token minus that of another: log-odds between the two, in nats."""
    return lambda logits: logits[:, answer] - logits[:, foil]


def swaps(
    model: Model, prompt: Batch, logits: Tensor, score: Score, content: Sequence[int] | None = None, last: int = -1
) -> list[Swap]:
    """Swaps that cost the answer at least `MOVES`, best first.

    Args:
        model: an opened language model.
        prompt: one unpadded row.
        logits: its logits at every position, `[pos, vocab]`.
        score: what the answer should lose.
        content: positions that may be swapped; None for all.
        last: the position that is swapped only if no other one helps.

    Raises:
        BadInput: no swap moves the answer enough; the message advises a counterfactual of one's own.
    """
    ids = prompt.input_ids[0]
    by_position = _alternatives(model, ids, logits, range(len(ids)) if content is None else content)
    first = [(position, found[0]) for position, found in by_position.items()]
    others = [(position, new) for position, found in by_position.items() for new in found[1:]]
    measured = _measure(model, prompt, logits, first, score)
    if (len(first) + len(others)) * len(ids) > TOKENS:
        best = sorted(measured, key=lambda swap: -swap.loss)[:FOLLOWED]
        others = [trial for trial in others if trial[0] in {swap.position for swap in best}]
    measured += _measure(model, prompt, logits, others, score)
    found = [swap for swap in measured if swap.loss >= MOVES]
    inner = [swap for swap in found if swap.position != last % len(ids)]
    if not found:
        most = max((swap.loss for swap in measured), default=0.0)
        fell = f"the answer's log-odds fell by {most:.1f} nats at most ({MOVES:g} are needed)"
        raise BadInput(
            "an automatic counterfactual",
            f"swaps of one token were tried ({len(measured)}), and {fell}"
            if measured
            else "no token has an alternative",
            "give --counterfactual, a prompt of as many tokens that has another answer; or ask about another --answer",
        )
    return sorted(inner or found, key=lambda swap: (not swap.flips, -swap.worth))


def swapped(ids: Tensor, position: int, new: int) -> list[int]:
    """Token ids `[pos]` with one replaced."""
    changed = ids.tolist()
    changed[position] = new
    return changed


_Trial = tuple[int, int]
"""Position and new id."""


def _alternatives(model: Model, ids: Tensor, logits: Tensor, content: Sequence[int]) -> dict[int, list[int]]:
    """Per position the ids worth trying there, nearest first, for at most `SCANNED` positions."""
    nearness = _nearness(model)
    special = _special(model)
    present = {int(ids[p]) for p in content}
    found: dict[int, list[int]] = {}
    for position in sorted(set(content) - {0}, reverse=True):
        old = Token.of(model, int(ids[position]))
        if old.id in special or not any(c.isalnum() for c in old.text) or len(found) == SCANNED:
            continue
        expected = logits[position - 1].topk(min(EXPECTED, logits.shape[-1])).indices
        cosine = nearness(old.id, expected)
        order = [int(expected[i]) for i in cosine.argsort(descending=True) if cosine[i] >= SIMILAR]
        # Other tokens of the prompt first: swapping a name for another name of the prompt is the best test there is.
        order.sort(key=lambda id: id not in present)
        kept = (id for id in order if id not in special and _same_kind(old.text, Token.of(model, id).text))
        if chosen := list(islice(kept, PER_POSITION)):
            found[position] = chosen
    return found


def _special(model: Model) -> set[int]:
    """Ids that stand for no text: ends of texts and turns, roles."""
    added = getattr(model.tokenizer, "added_tokens_decoder", {})
    return {*getattr(model.tokenizer, "all_special_ids", ()), *(id for id, token in added.items() if token.special)}


def _nearness(model: Model) -> Callable[[int, Tensor], Tensor]:
    """Cosine between one token and others, where the few directions that encode frequency are taken out."""
    embedding = model.weight("W_E").value.float()
    center = embedding.mean(0)
    sample = embedding[:: max(1, len(embedding) // 16384)] - center
    widest = torch.linalg.eigh(sample.T @ sample).eigenvectors[:, -WIDEST:]

    def unit(rows: Tensor) -> Tensor:
        rows = rows - center
        rows = rows - rows @ widest @ widest.T
        return rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)

    return lambda id, others: unit(embedding[others.to(embedding.device)]) @ unit(embedding[id])


def _same_kind(old: str, new: str) -> bool:
    """Spaces, capital, digits and length class agree, and the words differ by more than their case."""
    return _kind(old) == _kind(new) and old.strip().lower() != new.strip().lower()


def _kind(text: str) -> tuple[bool, ...]:
    word = text.strip()
    return (text[:1].isspace(), word[:1].isupper(), word.isdigit(), word.isalpha(), len(word) > 1)


def _measure(model: Model, prompt: Batch, logits: Tensor, trials: Sequence[_Trial], score: Score) -> list[Swap]:
    """What each trial costs the answer and the prompt's plausibility; tokens before the first trial are run once."""
    if not trials:
        return []
    ids, first = prompt.input_ids[0], min(position for position, _ in trials)
    prefix = shared_prefix(model, prompt, first)
    seen = 0 if prefix is None else first
    size = max(1, int(LOGITS / (logits.shape[-1] * (len(ids) - seen))))
    before, base = score(logits[-1:])[0], _text_log_prob(logits[None, first:], ids[None, first:])[0]
    entry = logits[first - 1].log_softmax(-1)  # predicts the first token that may change
    found = []
    for start in range(0, len(trials), size):
        piece = trials[start : start + size]
        rows = torch.tensor([swapped(ids, position, new) for position, new in piece])
        run = model.run(model.encode(rows, bos="none"), prefix=prefix)
        assert run.logits is not None
        changed = run.logits.float().cpu()
        losses = (before - score(changed[:, -1])).tolist()
        texts = (_text_log_prob(changed[:, first - seen :], rows[:, first:]) - base).tolist()
        flips = (changed[:, -1].argmax(-1) != logits[-1].argmax()).tolist()
        for (position, new), loss, text, flip, row in zip(piece, losses, texts, flips, rows):
            old = Token.of(model, int(ids[position]))
            plausibility = text + float(entry[row[first]] - entry[ids[first]])
            found.append(Swap(position, old, Token.of(model, new), loss, plausibility, flip))
    return found


def _text_log_prob(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of the tokens after the first, `[row]`."""
    own = logits[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return (own - logits[:, :-1].logsumexp(-1)).sum(-1)
