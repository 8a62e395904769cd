"""ProteinMPNN: given a protein's backbone, which amino acid fits where.

The structure becomes a graph: each residue is joined to its nearest residues, and an edge carries distances
between backbone atoms and the offset along the chain. The ``encoder`` passes messages over that graph; the
``decoder`` reads the result together with the amino acids already placed, in any order of residues, and
``output`` scores the 20 letters and X.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from mechanome.core.errors import BadInput, ShapeMismatch

ALPHABET = "ACDEFGHIKLMNPQRSTVWYX"

_MESSAGE_SCALE = 30.0  # messages are summed over neighbors and divided by this, whatever their number
_SPAN = 32  # offsets along the chain are told apart up to this many residues
_DISTANCE_RANGE = (2.0, 22.0)  # angstrom, centers of the radial basis
_BASIS = 16
_SAFE = 1e-6  # keeps the gradient of a square root finite at distance 0
# Pairs of atoms whose distance an edge carries, in the order the weights expect: first of i, then of j.
# fmt: off
_PAIRS = (
    ("CA", "CA"), ("N", "N"), ("C", "C"), ("O", "O"), ("CB", "CB"), ("CA", "N"),
    ("CA", "C"), ("CA", "O"), ("CA", "CB"), ("N", "C"), ("N", "O"), ("N", "CB"),
    ("CB", "C"), ("CB", "O"), ("O", "C"), ("N", "CA"), ("C", "CA"), ("O", "CA"),
    ("CB", "CA"), ("C", "N"), ("O", "N"), ("CB", "N"), ("C", "CB"), ("O", "CB"),
    ("C", "O"),
)
# fmt: on


def encode_sequence(sequence: str) -> Tensor:
    """Letters to ids ``[residue]``; letters outside the alphabet become X."""
    unknown = len(ALPHABET) - 1
    return torch.tensor([ALPHABET.index(letter) if letter in ALPHABET else unknown for letter in sequence])


def gather_neighbors(nodes: Tensor, neighbors: Tensor) -> Tensor:
    """Values of each residue's neighbors.

    Args:
        nodes: ``[batch residue feature]``.
        neighbors: ``[batch residue neighbor]`` indices.

    Returns:
        ``[batch residue neighbor feature]``.
    """
    batch = torch.arange(nodes.shape[0], device=nodes.device)[:, None, None]
    return nodes[batch, neighbors]


def take(rows: Tensor, neighbors: Tensor) -> Tensor:
    """``[batch residue]`` or ``[batch residue other]`` picked at ``[batch residue neighbor]``."""
    pairs = rows if rows.dim() == 3 else rows.unsqueeze(1).expand(-1, neighbors.shape[1], -1)
    return torch.gather(pairs, 2, neighbors)


def virtual_beta(coordinates: Tensor) -> Tensor:
    """Where an ideal side chain's first carbon sits: ``[batch residue xyz]`` from N, CA, C ``[... atom xyz]``."""
    nitrogen, alpha, carbon = coordinates[..., 0, :], coordinates[..., 1, :], coordinates[..., 2, :]
    to_alpha, to_carbon = alpha - nitrogen, carbon - alpha
    normal = torch.linalg.cross(to_alpha, to_carbon)
    return -0.58273431 * normal + 0.56802827 * to_alpha - 0.54067466 * to_carbon + alpha


class EdgeFeatures(nn.Module):
    """The graph and what its edges carry."""

    def __init__(self, width: int, neighbors: int, offset_width: int = 16) -> None:
        super().__init__()
        self.neighbors = neighbors
        self.offset = nn.Linear(2 * _SPAN + 2, offset_width)  # one input a clipped offset, the last: another chain
        self.embed = nn.Linear(offset_width + _BASIS * len(_PAIRS), width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, coordinates: Tensor, mask: Tensor, residue_index: Tensor, chain: Tensor) -> tuple[Tensor, Tensor]:
        """Edges ``[batch residue neighbor width]`` and the neighbor indices ``[batch residue neighbor]``."""
        atoms = dict(zip(("N", "CA", "C", "O"), coordinates.unbind(-2), strict=True), CB=virtual_beta(coordinates))
        nearest, neighbors = self.nearest(atoms["CA"], mask)
        others = (
            _distance(atoms[one].unsqueeze(2), gather_neighbors(atoms[other], neighbors)) for one, other in _PAIRS[1:]
        )
        distances = [nearest, *others]
        offset = residue_index.unsqueeze(-1) - take(residue_index, neighbors) + _SPAN
        same_chain = chain.unsqueeze(-1) == take(chain, neighbors)
        kind = torch.where(same_chain, offset.clamp(0, 2 * _SPAN), 2 * _SPAN + 1)
        place = self.offset(functional.one_hot(kind, 2 * _SPAN + 2).to(coordinates.dtype))
        features = torch.cat([place, *(radial_basis(distance) for distance in distances)], -1)
        return self.norm(self.embed(features)), neighbors

    def nearest(self, alpha: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Distances and indices ``[batch residue neighbor]`` of the residues nearest by alpha carbon, itself first.

        A masked residue counts as being as far away as the farthest other one.
        """
        together = mask.unsqueeze(-1) * mask.unsqueeze(-2)
        distance = together * _distance(alpha.unsqueeze(2), alpha.unsqueeze(1))
        far = distance + (1 - together) * distance.amax(-1, keepdim=True)
        values, indices = far.topk(min(self.neighbors, alpha.shape[1]), dim=-1, largest=False)
        return values, indices


def _distance(one: Tensor, other: Tensor) -> Tensor:
    return ((one - other).square().sum(-1) + _SAFE).sqrt()


def radial_basis(distance: Tensor) -> Tensor:
    """``[...]`` in angstrom to ``[... basis]``: Gaussian bumps between 2 and 22 angstrom."""
    low, high = _DISTANCE_RANGE
    centers = torch.linspace(low, high, _BASIS, device=distance.device, dtype=distance.dtype)
    return torch.exp(-(((distance.unsqueeze(-1) - centers) / ((high - low) / _BASIS)) ** 2))


class Message(nn.Sequential):
    """Three linear layers with GELU between: what one residue tells another."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        for name, size in (("first", width_in), ("second", width), ("third", width)):
            self.add_module(name, nn.Linear(size, width))
            if name != "third":
                self.add_module(f"{name}_act", nn.GELU())


class FeedForward(nn.Sequential):
    """The usual two-layer perceptron, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.add_module("up", nn.Linear(width, 4 * width))
        self.add_module("act", nn.GELU())
        self.add_module("down", nn.Linear(4 * width, width))


class NodeUpdate(nn.Module):
    """Sum the neighbors' messages into each residue, then a feed-forward step; norms follow the additions."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.message = Message(width + context, width)
        self.message_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width)
        self.feed_forward_norm = nn.LayerNorm(width)

    def forward(self, nodes: Tensor, context: Tensor, mask: Tensor, attend: Tensor) -> Tensor:
        """New nodes.

        Args:
            nodes: ``[batch residue width]``.
            context: ``[batch residue neighbor context]``, what a residue sees of each neighbor.
            mask: ``[batch residue]``, 0 where there is no residue.
            attend: ``[batch residue neighbor]`` factors on the messages.
        """
        messages = self.message(torch.cat([nodes.unsqueeze(2).expand(*context.shape[:3], -1), context], -1))
        heard = (messages * attend.unsqueeze(-1)).sum(2)
        nodes = self.message_norm(nodes + heard / _MESSAGE_SCALE)
        nodes = self.feed_forward_norm(nodes + self.feed_forward(nodes))
        return nodes * mask.unsqueeze(-1)


class EncoderLayer(nn.Module):
    """Residues hear their neighbors, then each edge hears both its ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.node = NodeUpdate(width, 2 * width)
        self.edge_message = Message(3 * width, width)
        self.edge_norm = nn.LayerNorm(width)

    def forward(
        self, nodes: Tensor, edges: Tensor, neighbors: Tensor, mask: Tensor, attend: Tensor
    ) -> tuple[Tensor, Tensor]:
        """New nodes ``[batch residue width]`` and edges ``[batch residue neighbor width]``."""
        nodes = self.node(nodes, torch.cat([edges, gather_neighbors(nodes, neighbors)], -1), mask, attend)
        here = nodes.unsqueeze(2).expand(*edges.shape[:3], -1)
        update = self.edge_message(torch.cat([here, edges, gather_neighbors(nodes, neighbors)], -1))
        return nodes, self.edge_norm(edges + update)


class ProteinMPNN(nn.Module):
    """Sequence design for a fixed backbone; the defaults are the 48-neighbor model.

    Args:
        width: size of nodes and edges.
        layers: layers of the encoder and of the decoder.
        neighbors: neighbors a residue is joined to.
    """

    def __init__(self, width: int = 128, layers: int = 3, neighbors: int = 48) -> None:
        super().__init__()
        self.features = EdgeFeatures(width, neighbors)
        self.edge_embed = nn.Linear(width, width)
        self.letter_embed = nn.Embedding(len(ALPHABET), width)
        self.encoder = nn.ModuleList(EncoderLayer(width) for _ in range(layers))
        self.decoder = nn.ModuleList(NodeUpdate(width, 3 * width) for _ in range(layers))
        self.output = nn.Linear(width, len(ALPHABET))

    def forward(
        self,
        coordinates: Tensor,
        sequence: Tensor | None = None,
        mask: Tensor | None = None,
        residue_index: Tensor | None = None,
        chain: Tensor | None = None,
        order: Tensor | Sequence[int] | None = None,
    ) -> Tensor:
        """Log-probabilities of the amino acid at each residue.

        Args:
            coordinates: ``[batch residue atom=4 xyz]`` of N, CA, C and O in angstrom.
            sequence: ``[batch residue]`` letter ids (`encode_sequence`); each residue is predicted from the
                structure and the letters that come before it in `order`. Without it the structure alone counts.
            mask: ``[batch residue]``, 0 for padding or missing coordinates; default all 1. Absent residues send no
                messages, so padding never changes a result. (The original decoder hears them where a chain has
                fewer residues than a residue has neighbors; everywhere else the two agree.)
            residue_index: ``[batch residue]`` numbers along the chain; default 0, 1, 2 ...
            chain: ``[batch residue]`` chain numbers; default one chain.
            order: ``[residue]`` or ``[batch residue]``, the order in which letters are placed (a permutation);
                default from the first residue to the last.

        Returns:
            ``[batch residue letter=21]`` log-probabilities, letters as in `ALPHABET`.

        Raises:
            ShapeMismatch: coordinates or another input have the wrong axes.
            BadInput: `order` is no permutation of the residues.
        """
        if coordinates.dim() != 4 or coordinates.shape[2:] != (4, 3):
            raise ShapeMismatch(f"coordinates {tuple(coordinates.shape)}", "need [batch, residue, 4 atoms, 3]")
        batch, length = coordinates.shape[:2]
        device = coordinates.device
        given = {
            "mask": coordinates.new_ones(length) if mask is None else mask.to(coordinates.dtype),
            "residue_index": torch.arange(length, device=device) if residue_index is None else residue_index,
            "chain": torch.zeros(length, dtype=torch.long, device=device) if chain is None else chain,
            "order": torch.arange(length, device=device) if order is None else torch.as_tensor(order, device=device),
            "sequence": torch.zeros(length, dtype=torch.long, device=device) if sequence is None else sequence,
        }
        for name, value in given.items():
            if value.shape not in ((batch, length), (length,)):
                raise ShapeMismatch(f"{name} {tuple(value.shape)}", f"need [{length}] or [{batch}, {length}]")
        mask, residue_index, chain, order, letters = (value.expand(batch, length) for value in given.values())
        coordinates = coordinates.masked_fill(mask[..., None, None] == 0, 0.0)

        edges, neighbors = self.features(coordinates, mask, residue_index, chain)
        edges = self.edge_embed(edges)
        nodes = torch.zeros_like(edges[:, :, 0])
        attend = mask.unsqueeze(-1) * take(mask, neighbors)
        for layer in self.encoder:
            nodes, edges = layer(nodes, edges, neighbors, mask, attend)

        # A neighbor placed earlier shows its letter and current state; any other shows the encoder's view of it.
        encoded = torch.cat([edges, torch.zeros_like(edges), gather_neighbors(nodes, neighbors)], -1)
        if sequence is None:
            for update in self.decoder:
                nodes = update(nodes, encoded, mask, attend)
        else:
            placed = take(self.earlier(order), neighbors).unsqueeze(-1)
            shown = gather_neighbors(self.letter_embed(letters), neighbors)
            for update in self.decoder:
                decoded = torch.cat([edges, shown, gather_neighbors(nodes, neighbors)], -1)
                nodes = update(nodes, torch.where(placed, decoded, encoded), mask, attend)
        return functional.log_softmax(self.output(nodes), -1)

    @staticmethod
    def earlier(order: Tensor) -> Tensor:
        """Whether `other` is placed before the residue.

        Args:
            order: ``[batch residue]``, each row a permutation of the residues.

        Returns:
            ``[batch residue other]`` booleans.

        Raises:
            BadInput: a row is no permutation.
        """
        rank = torch.argsort(order, -1)
        length = order.shape[1]
        if not torch.equal(order.gather(1, rank), torch.arange(length, device=order.device).expand_as(order)):
            raise BadInput("order", "it is no permutation of the residues", f"name each of 0 .. {length - 1} once")
        return rank.unsqueeze(1) < rank.unsqueeze(2)
