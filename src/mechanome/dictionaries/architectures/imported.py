"""Recipes of other tools, here so that their files can be read: TopK with another choice, and rows normalized one by
one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mechanome.core.errors import NotServed, UnknownName, nearest
from mechanome.dictionaries.architectures.top_k import TopK
from mechanome.dictionaries.architectures.wrapped import Wrapped
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.row_normalized import ROWS, RowNormalizedAutoencoder
from mechanome.dictionaries.selectors.abs_top_k import AbsTopKSelector
from mechanome.dictionaries.selectors.group_max import GroupMaxSelector
from mechanome.dictionaries.selectors.selector import Selector
from mechanome.dictionaries.selectors.weighted_top_k import WeightedTopKSelector
from mechanome.dictionaries.trace import Trace


@dataclass(frozen=True)
class AbsTopK(TopK):
    """The k largest in size of each row, signs kept (SAELens); arguments as :class:`TopK`."""

    architecture: ClassVar[str] = "abstopk"

    def selector(self) -> Selector:
        return AbsTopKSelector(self.k, self.width)


@dataclass(frozen=True)
class GroupMax(TopK):
    """The largest of each of k groups (sparsify); arguments as :class:`TopK`, k dividing the width."""

    architecture: ClassVar[str] = "groupmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.try_parts()

    def selector(self) -> Selector:
        return GroupMaxSelector(self.k, self.width)


@dataclass(frozen=True)
class WeightedTopK(TopK):
    """The k largest of each row by fixed weights (llamascopium); arguments as :class:`TopK`.

    A fit leaves the weights at 1, where it is TopK.
    """

    architecture: ClassVar[str] = "weighted_topk"

    def selector(self) -> Selector:
        return WeightedTopKSelector(self.k, self.width)


@dataclass(frozen=True)
class RowNormalized(Wrapped):
    """An autoencoder of rows that are normalized one by one (SAELens); read, not fitted.

    Args:
        inner: decides about codes.
        rows: "layer" (mean 0, deviation 1) or "length" (sqrt(d)).

    Raises:
        UnknownName: another normalization. BadInput: the inner recipe is itself wrapped.
    """

    rows: str = "layer"

    architecture: ClassVar[str] = "row_normalized"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows not in ROWS:
            raise UnknownName(f"rows {self.rows!r}", "there is no such normalization", nearest(self.rows, ROWS))

    def kind(self) -> type[SparseAutoencoder]:
        return RowNormalizedAutoencoder

    def penalties(self, trace: Trace) -> dict[str, Tensor]:
        raise NotServed("fitting a row-normalized dictionary", "it is only read", "fit with normalize='scale'")
