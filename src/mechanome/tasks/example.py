"""One example of a behaviour: an input, the right answer, a wrong one, and the same input changed in what decides.

The counterfactual is the example's control. It asks the same question of another thing, so that the foil becomes a
right answer; whatever the model computes alike for both inputs cannot be what decides between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mechanome.core.errors import BadInput

if TYPE_CHECKING:
    from mechanome.engine import Batch, Model

Answer = str | tuple[int, ...]
"""What follows the input: a text with its leading space, or token ids."""
Label = str | int | float | None
Span = str | tuple[int, int] | list[int]
"""A text that occurs once in the prompt, a `(start, end)` range of characters, or a list of token positions."""
ANY_SPLIT = "all"
"""The split of examples that belong to none in particular."""


@dataclass(frozen=True)
class Example:
    """An input with its answer and its control.

    Args:
        inputs: a text, a chat (messages with role and content), token ids, or a mapping of tensors `[1, ...]` as the
            model's processor makes them.
        answer: what is right. foil: what is wrong; both of one or several tokens.
        counterfactual: an input after which the foil is right; of the same kind as `inputs`.
        label: what the example is an instance of, for probes.
        spans: labelled places in `inputs`. counterfactual_spans: the same labels in the counterfactual.
        groups: what it has in common with others (its template, its subject ...), for splits and breakdowns.
        split: "train", "validation", "test" or a name of one's own.
        weight: how much it counts, above 0.

    Raises:
        BadInput: no input, answer equal to foil, counterfactual equal to input, a span outside the text or
            with a label that already names a position ("last"), a weight that is no positive number.
    """

    inputs: Any
    _: KW_ONLY
    answer: Answer | None = None
    foil: Answer | None = None
    counterfactual: Any = None
    label: Label = None
    spans: Mapping[str, Span] = field(default_factory=dict)
    counterfactual_spans: Mapping[str, Span] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    split: str = ANY_SPLIT
    weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("inputs", "counterfactual", "answer", "foil"):
            object.__setattr__(self, name, _settled(name, getattr(self, name)))
        if self.inputs is None:
            raise BadInput("an example", "it has no input", "give a text, a chat, token ids or tensors")
        if self.answer is not None and self.answer == self.foil:
            raise BadInput(f"foil {self.foil!r}", "it is the answer", "choose a wrong answer")
        if self.counterfactual is not None and _same(self.inputs, self.counterfactual):
            raise BadInput("the counterfactual", "it is the input itself", "change what decides the answer")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise BadInput(f"weight {self.weight}", "it is no positive number", "leave out examples that do not count")
        _check_spans(self.inputs, self.spans)
        if self.counterfactual_spans and self.counterfactual is None:
            raise BadInput("spans of the counterfactual", "there is no counterfactual", "give one, or drop the spans")
        _check_spans(self.counterfactual, self.counterfactual_spans)

    def __batch__(self, model: Model) -> Batch:
        """What functions of inputs (`model.run`, a lens ...) take of an example: its input and spans, as one row."""
        from mechanome.tasks.batches import encode

        return encode(model, [self])


_TAKEN = re.compile(r"all|first|last|prompt|generated|-?\d*:-?\d*")
"""Names that `Frame.positions` understands before it looks at labels."""


def shown(value: Any, width: int = 60) -> str:
    """An input or answer for people: text quoted, its beginning cut where it is long, tensors by shape."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {list(v.shape)}" if isinstance(v, Tensor) else k for k, v in value.items())
    if not isinstance(value, str):
        value = value[-1]["content"] if value and isinstance(value[0], Mapping) else " ".join(map(str, value))
    return repr(value if len(value) <= width else "…" + value[1 - width :])


def _settled(name: str, value: Any) -> Any:
    """Lists become tuples, so that an example never changes; empty ones are refused."""
    if value is None or isinstance(value, Mapping):
        return value
    if isinstance(value, Tensor):
        value = value.tolist()
    if not isinstance(value, str | Sequence) or not len(value):
        raise BadInput(f"{name} {value!r}", "nothing can be read from it", "give a text or token ids")
    if isinstance(value, str):
        return value
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return tuple(value)
    messages = all(isinstance(item, Mapping) and "role" in item and "content" in item for item in value)
    if name in ("inputs", "counterfactual") and messages:
        return tuple(dict(item) for item in value)
    raise BadInput(f"{name} {value!r}", "it is neither text nor token ids", "give one example's text, chat or ids")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            bool(v.equal(other[k])) if isinstance(v, Tensor) else v == other[k] for k, v in one.items()
        )
    return not isinstance(one, Mapping) and not isinstance(other, Mapping) and bool(one == other)


def _check_spans(inputs: Any, spans: Mapping[str, Span]) -> None:
    for name, where in spans.items():
        if _TAKEN.fullmatch(name):
            raise BadInput(f"span '{name}'", "as a position this name means something else", "choose another label")
        if isinstance(where, tuple) and isinstance(inputs, str) and not 0 <= where[0] < where[1] <= len(inputs):
            raise BadInput(
                f"span '{name}' {where}", f"the text has {len(inputs)} characters", "give start < end inside the text"
            )
        if isinstance(where, str | tuple) and not isinstance(inputs, str) and not _is_chat(inputs):
            raise BadInput(f"span '{name}'", "only text has characters", "give token positions as a list")


def _is_chat(inputs: Any) -> bool:
    return isinstance(inputs, tuple) and bool(inputs) and isinstance(inputs[0], Mapping)
