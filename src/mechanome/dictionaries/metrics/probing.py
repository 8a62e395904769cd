"""k-sparse probing: how well a few latents tell classes apart, on groups of rows that were not looked at.

For each class and each k, the k latents whose mean differs most between the class and all others are chosen on the
training groups, and a logistic regression on them is judged on the held-out ones. Groups (documents, templates) are
never split. Beside it stands the same with labels shuffled over groups: what the procedure reaches when there is
nothing to find.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from mechanome.core import BadInput, Interval, NotFinite, ShapeMismatch, Table, TooFewRows, bootstrap
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.metrics.measure import RESAMPLES, Measure, measure
from mechanome.engine.asked import count, seed_of


@dataclass(frozen=True)
class SparseProbe:
    """What k latents reach.

    Args:
        k: how many latents.
        accuracy: held out, mean over classes of one class against the rest, interval over groups.
        f1: likewise.
        control: accuracies with shuffled labels, one a shuffle.
        latents: per class, the chosen latents, the best first.
        rows, groups: of the held-out part.
    """

    k: int
    accuracy: Interval
    f1: Interval
    control: tuple[float, ...] = field(repr=False)
    latents: dict[int, tuple[int, ...]] = field(repr=False)
    rows: int = 0
    groups: int = 0

    def measures(self) -> Iterator[Measure]:
        """Accuracy, F1 and the control."""
        yield measure("probe_accuracy.v1", self.accuracy.estimate, self.groups, self.accuracy)
        yield measure("probe_f1.v1", self.f1.estimate, self.groups, self.f1)
        yield measure("probe_control.v1", float(np.mean(self.control)), self.groups)


def probes_table(probes: Sequence[SparseProbe]) -> Table:
    """One line a k."""
    rows = [
        (p.k, p.accuracy.estimate, p.accuracy.lo, p.accuracy.hi, p.f1.estimate, float(np.mean(p.control)), p.groups)
        for p in probes
    ]
    return Table(["k", "accuracy", "lo", "hi", "F1", "shuffled labels", "groups"], rows, "k-sparse probing")


def pooled(codes: SparseCodes, groups: Tensor) -> tuple[SparseCodes, Tensor]:
    """Mean code of each group of rows (of each text), and the groups in the order of the result.

    Args:
        codes: `[row, latent]`. groups: `[row]`, integers.
    """
    names, index, sizes = _codes(groups, codes.rows).unique(return_inverse=True, return_counts=True)
    weights = sparse.csr_matrix((1.0 / sizes[index].numpy(), (index.numpy(), np.arange(codes.rows))))
    return _sparse_codes(weights @ _matrix(codes)), names


def sparse_probing(
    codes: SparseCodes | Tensor,
    y: Tensor | Sequence[int],
    groups: Tensor | Sequence[int] | None = None,
    *,
    k: int | Sequence[int] = (1, 2, 5),
    held_out: float = 0.3,
    shuffles: int = 5,
    seed: int = 0,
) -> list[SparseProbe]:
    """Probe a few latents for classes.

    Args:
        codes: `[row, latent]`; of tokens, or of texts (`pooled`). Any features do, as a tensor.
        y: class of each row, integers.
        groups: `[row]`; rows of one group are never split. None takes each row for itself.
        k: numbers of latents.
        held_out: share of groups that is judged.
        shuffles: of the labels, for the control.
        seed: of the split and the shuffles.

    Returns:
        one probe a k.

    Raises:
        ShapeMismatch: not one class or group a row. NotFinite: NaN or infinity in the codes.
        TooFewRows: fewer than two classes, or a class without groups on both sides of the split.
        BadInput: k above the number of latents.
    """
    codes = SparseCodes.of_dense(codes) if isinstance(codes, Tensor) else codes
    if not bool(torch.isfinite(codes.values).all()):
        raise NotFinite("codes", "they hold NaN or infinity", "check the activations that they were made from")
    ks = [count("k", value) for value in ([k] if isinstance(k, int) else k)]
    if max(ks) > codes.width:
        raise BadInput(f"k = {max(ks)}", f"there are {codes.width} latents", "choose fewer")
    if not 0 < held_out < 1:
        raise BadInput(f"held_out={held_out}", "it is no share of the groups", "use 0.3")
    labels = _codes(y, codes.rows).numpy()
    owner = np.arange(codes.rows) if groups is None else _codes(groups, codes.rows).numpy()
    generator = np.random.default_rng(seed_of(seed))
    data = _Data(_matrix(codes), labels, owner)
    data.split(held_out, generator)
    shuffled = [data.shuffled(generator) for _ in range(count("shuffles", shuffles))]
    own, others = data.probes(ks), [other.probes(ks) for other in shuffled]
    return [_result(data, k, own[k], [other[k] for other in others], seed) for k in ks]


@dataclass
class _Outcome:
    """Per class, what was said of each held-out row, and what is true."""

    said: np.ndarray
    true: np.ndarray
    latents: dict[int, tuple[int, ...]]


@dataclass
class _Data:
    matrix: Any
    labels: np.ndarray
    owner: np.ndarray
    test: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.classes = np.unique(self.labels)
        if len(self.classes) < 2:
            raise TooFewRows("probing", "there is one class only", "give rows of at least two classes")

    def split(self, held_out: float, generator: np.random.Generator) -> None:
        """Choose the held-out groups: of each class the same share, counting a group for its commonest class."""
        names, index = np.unique(self.owner, return_inverse=True)
        tally = np.stack([np.bincount(index, self.labels == c, len(names)) for c in self.classes])
        commonest = tally.argmax(0)
        chosen = np.zeros(len(names), dtype=bool)
        for c in range(len(self.classes)):
            members = generator.permutation(np.flatnonzero(commonest == c))
            chosen[members[: max(1, round(held_out * len(members)))]] = True
        self.test = chosen[index]
        for c in self.classes:
            for side, what in ((self.test, "held-out"), (~self.test, "training")):
                if not (self.labels[side] == c).any() or not (self.labels[side] != c).any():
                    why = f"class {c} or all others have no row in the {what} groups"
                    raise TooFewRows("probing", why, "give more groups of each class, or another held_out")

    def shuffled(self, generator: np.random.Generator) -> _Data:
        """The same rows and split with labels exchanged between groups, within each side of the split."""
        other = _Data(self.matrix, self.labels.copy(), self.owner)
        other.test = self.test
        for side in (self.test, ~self.test):
            rows = np.flatnonzero(side)
            names, index = np.unique(self.owner[rows], return_inverse=True)
            members = [rows[index == g] for g in range(len(names))]
            drawn = [members[g] for g in generator.permutation(len(names))]
            # Labels of whole groups change places; where groups differ in size, they flow on into the next one.
            other.labels[np.concatenate(members)] = self.labels[np.concatenate(drawn)]
        return other

    def probes(self, ks: Sequence[int]) -> dict[int, _Outcome]:
        train, test = self.matrix[~self.test], self.matrix[self.test]
        y = self.labels[~self.test]
        found: dict[int, _Outcome] = {}
        ranked = {c: _ranked(train, y == c, max(ks)) for c in self.classes}
        for k in ks:
            said = [self._said(train, test, y == c, ranked[c][:k]) for c in self.classes]
            true = [self.labels[self.test] == c for c in self.classes]
            latents = {int(c): tuple(int(i) for i in ranked[c][:k]) for c in self.classes}
            found[k] = _Outcome(np.stack(said), np.stack(true), latents)
        return found

    def _said(self, train: Any, test: Any, y: np.ndarray, latents: np.ndarray) -> np.ndarray:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        probe = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1000))
        probe.fit(train[:, latents].toarray(), y)
        return np.asarray(probe.predict(test[:, latents].toarray()), dtype=bool)


def _ranked(matrix: Any, own: np.ndarray, most: int) -> np.ndarray:
    """Latents by the size of the difference of their class means; ties in order of the latents."""
    inside, outside = (np.asarray(matrix[rows].mean(0)).ravel() for rows in (own, ~own))
    return np.argsort(-np.abs(inside - outside), kind="stable")[:most]


def _result(data: _Data, k: int, own: _Outcome, others: Sequence[_Outcome], seed: int) -> SparseProbe:
    owner = data.owner[data.test]
    # Per row and class: hit, true positive, said, true. Every score is a function of their sums.
    table = np.stack([own.said == own.true, own.said & own.true, own.said, own.true], axis=-1).astype(float)
    names, index = np.unique(owner, return_inverse=True)
    sums = np.zeros((len(names), *table.shape[::2]))
    np.add.at(sums, index, table.swapaxes(0, 1))
    sizes = np.bincount(index).astype(float)
    rows = np.concatenate([sums.reshape(len(names), -1), sizes[:, None]], axis=1)
    shape = table.shape[::2]

    def accuracy(drawn: np.ndarray) -> float:
        total = drawn.sum(0)
        return float((total[:-1].reshape(shape)[:, 0] / total[-1]).mean())

    def f1(drawn: np.ndarray) -> float:
        _, hit, said, true = drawn.sum(0)[:-1].reshape(shape).T
        return float((2 * hit / np.maximum(said + true, 1.0)).mean())

    right, harmonic = (bootstrap(rows, statistic, resamples=RESAMPLES, seed=seed) for statistic in (accuracy, f1))
    control = tuple(float((other.said == other.true).mean()) for other in others)
    return SparseProbe(k, right, harmonic, control, own.latents, len(owner), len(names))


def _codes(values: Tensor | Sequence[int], rows: int) -> Tensor:
    found = torch.as_tensor(values).cpu()
    if found.shape != (rows,) or found.is_floating_point():
        raise ShapeMismatch("classes or groups", f"shape {list(found.shape)} for {rows} rows", "give an integer a row")
    return found.long()


def _matrix(codes: SparseCodes) -> Any:
    codes = codes.to("cpu", torch.float64)
    parts = (codes.values.detach().numpy(), codes.indices.numpy(), codes.offsets.numpy())
    return sparse.csr_matrix(parts, shape=(codes.rows, codes.width))


def _sparse_codes(matrix: Any) -> SparseCodes:
    found = matrix.tocsr()
    found.sort_indices()
    indices, offsets = (torch.from_numpy(part.astype(np.int64)) for part in (found.indices, found.indptr))
    return SparseCodes(indices, torch.from_numpy(found.data), offsets, found.shape[1])
