"""The polynomial decoder: latents also act in pairs and triples, through a shared low-rank space (paper 42).

With a = z U the first R columns of a are squared and cubed place by place and each power has its own way out:
`x = b + a C1^T + l2 (a[:R2])^2 C2^T + l3 (a[:R3])^3 C3^T`. Expanding the square shows what pairs do: latents i and j,
active together, add `2 l2 C2 (U_i * U_j)`, an atom that no latent owns. U has orthonormal columns, kept by a
retraction. With `shared=False` each power has its own U, and a square is the product of two different sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mechanome.core.errors import BadInput
from mechanome.dictionaries.decoders.decoder import Decoder
from mechanome.dictionaries.decoders.stiefel import retract
from mechanome.dictionaries.norm import Affine


def check_ranks(ranks: Sequence[int], order: int, width: int) -> None:
    """Refuse ranks that no decoder can have.

    Raises:
        BadInput: an order other than 1 to 3, a rank missing, more than latents, or ranks that grow.
    """
    if order not in (1, 2, 3):
        raise BadInput(f"order {order}", "powers go from 1 to 3", "choose 1, 2 or 3")
    if len(ranks) != order or min(ranks) < 1:
        raise BadInput(f"ranks {list(ranks)}", f"order {order} needs {order} of them", "give one a power")
    if ranks[0] > width:
        why = f"{width} latents cannot have {ranks[0]} orthonormal columns"
        raise BadInput(f"rank {ranks[0]}", why, f"choose at most {width}")
    if list(ranks) != sorted(ranks, reverse=True):
        raise BadInput(f"ranks {list(ranks)}", "a power uses the first columns of the one before", "let them descend")


class PolynomialDecoder(Decoder):
    """`b + y1 + l2 y2 + l3 y3` of a code.

    Args:
        width, d_out, groups: as :class:`Decoder`.
        ranks: columns used by each power, descending; how many there are is the order.
        shared: one U for all powers; False gives each its own.
        retract_every: steps between retractions; a QR costs `2 width R1^2`.

    Raises:
        BadInput: as :func:`check_ranks`; with `shared=False` also more columns together than latents.
    """

    def __init__(
        self,
        width: int,
        d_out: int,
        ranks: Sequence[int],
        groups: tuple[int, ...] = (),
        *,
        shared: bool = True,
        retract_every: int = 1,
    ) -> None:
        super().__init__(width, d_out, groups)
        check_ranks(ranks, len(ranks), width)
        self.ranks, self.shared = tuple(ranks), shared
        self.columns = self.ranks[:1] if shared else self.ranks
        if sum(self.columns) > width:
            why = f"{width} latents cannot have {sum(self.columns)} orthonormal columns"
            raise BadInput(f"ranks {list(ranks)}", why, "lower them, or share U")
        if retract_every < 1:
            raise BadInput(f"retract_every {retract_every}", "it counts steps", "use at least 1")
        self.retract_every = retract_every
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        # QR gives columns; a fused optimizer that is resumed pairs memory, not places, so all tensors are kept by rows.
        self.U = nn.Parameter(torch.linalg.qr(torch.randn(width, sum(self.columns)))[0].contiguous())
        outs = [nn.Parameter(_kaiming(d_out, rank)) for rank in self.ranks]
        self.C = nn.ParameterList(outs)
        self.strengths = nn.Parameter(torch.tensor([-0.5, 0.5][: len(self.ranks) - 1]))

    steps: Tensor

    @property
    def order(self) -> int:
        """The highest power."""
        return len(self.ranks)

    @property
    def table(self) -> Tensor:
        return self.U

    def expand(self, sums: Tensor) -> Tensor:
        return self.b_dec + self._powers(sums)[0] + self.interactions(sums)

    def interactions(self, sums: Tensor) -> Tensor:
        """The part of the output that is not linear in the code `[..., d_out]`, from sums `[..., r]`."""
        total = sums.new_zeros(*sums.shape[:-1], len(self.b_dec))
        for strength, power in zip(self.strengths, self._powers(sums)[1:]):
            total = total + strength * power
        return total

    def directions(self) -> Tensor:
        return self.U[:, : self.ranks[0]] @ self.C[0].T

    def norms(self) -> Tensor:
        return (self.expand(self.U) - self.b_dec).norm(dim=1)

    def blocks(self) -> list[Tensor]:
        """U of each power `[latent, R1], [latent, R2], ...`: prefixes of one where shared."""
        if self.shared:
            return [self.U[:, :rank] for rank in self.ranks]
        return list(self.U.split(self.columns, dim=1))

    def pair_atoms(self, pairs: Tensor) -> Tensor:
        """What two latents add when both are 1 `[pair, d_out]`, from pairs `[pair, 2]`, in the dictionary's space.

        The coefficient of `z_i z_j`: for i = j of the square, else both orders together.
        """
        if self.order < 2:
            return self.b_dec.new_zeros(len(pairs), len(self.b_dec))
        first, second = (self._factors(2)[n] for n in (0, 1))
        i, j = pairs[:, 0], pairs[:, 1]
        product = first[i] * second[j]
        both = torch.where((i == j).unsqueeze(1), product, product + first[j] * second[i])
        return self.strengths[0] * both @ self.C[1].T

    def triple_atoms(self, triples: Tensor) -> Tensor:
        """The coefficient of `z_i z_j z_l` for triples of different latents `[triple, 3]`: `[triple, d_out]`.

        Raises:
            BadInput: a latent twice in a triple.
        """
        i, j, k = triples.unbind(1)
        if bool(((i == j) | (j == k) | (i == k)).any()):
            raise BadInput("triples", "a latent occurs twice in one", "give three different ones")
        if self.order < 3:
            return self.b_dec.new_zeros(len(triples), len(self.b_dec))
        a, b, c = self._factors(3)
        orders = [(i, j, k), (i, k, j), (j, i, k), (j, k, i), (k, i, j), (k, j, i)]
        total = torch.stack([a[p] * b[q] * c[r] for p, q, r in orders]).sum(0)
        return self.strengths[1] * total @ self.C[2].T

    @torch.no_grad()
    def fold(self, norm: Affine) -> None:
        for out in self.C:
            out.copy_(norm.directions(out.T).T)
        self.b_dec.copy_(norm.invert(self.b_dec))

    @torch.no_grad()
    def after_step(self) -> None:
        self.steps += 1
        if int(self.steps) % self.retract_every == 0:
            self.U.copy_(retract(self.U) if self.shared else self._retract_apart())

    def _powers(self, sums: Tensor) -> list[Tensor]:
        """`y1, y2, y3` `[..., d_out]`."""
        if self.shared:
            return [sums[..., :rank].pow(n) @ out.T for n, (rank, out) in enumerate(zip(self.ranks, self.C), 1)]
        parts = sums.split(self.columns, dim=-1)
        powers = []
        for n, (rank, out) in enumerate(zip(self.ranks, self.C), 1):
            factor = parts[0][..., :rank]
            for part in parts[1:n]:
                factor = factor * part[..., :rank]
            powers.append(factor @ out.T)
        return powers

    def _factors(self, power: int) -> list[Tensor]:
        """The rows whose products make a power's atoms, one matrix `[latent, R]` a factor."""
        rank, blocks = self.ranks[power - 1], self.blocks()
        return [(blocks[0] if self.shared else blocks[n])[:, :rank] for n in range(power)]

    def _retract_apart(self) -> Tensor:
        """Orthonormal prefixes of R3 columns, each against those before; then the rest of each against its own."""
        blocks, shortest = list(self.U.split(self.columns, dim=1)), self.ranks[-1]
        done = self.U[:, :0]
        prefixes = []
        for block in blocks:
            prefixes.append(retract(block[:, :shortest], done))
            done = torch.cat([done, prefixes[-1]], dim=1)
        rests = [retract(block[:, shortest:], prefix) for block, prefix in zip(blocks, prefixes)]
        return torch.cat([part for pair in zip(prefixes, rests) for part in pair], dim=1)


def _kaiming(d_out: int, rank: int) -> Tensor:
    weight = torch.empty(d_out, rank)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight
