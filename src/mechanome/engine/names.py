"""One translator between Mechanome's sites and the names other tools give to the same tensors.

TransformerLens and SAELens hook names, circuit-tracer's per-layer hooks, Hugging Face `hidden_states[i]` and nnterp
accessors are rows of one table (`ROWS`). A name whose meaning depends on how the model is built asks the model; a
name whose tensor is close but not the same says so (a `NearMatch` warning, `Foreign.note`) and `Foreign.convert`
makes it the same; a name without an equivalent is refused with the reason.

Differences worth knowing:

- TransformerLens `attn.hook_q` and `attn.hook_k` are projections before rotary: our `q_pre` and `k_pre`. After rotary
  they are `attn.hook_rot_q` and `attn.hook_rot_k`: our `q` and `k`; without rotary `hook_rot_*` does not exist there.
- `ln1.hook_normalized` (`ln2`, `ln_final` too) is read before the norm's gain and bias; our `ln1` is the norm's output.
  With folded weights the gain moved into the next matrix, so the two differ by it.
- The last Hugging Face hidden state went through the final norm in most text models: then it is `ln_final`, and
  `resid_post` of the last block is not among the hidden states at all.
- `resid_pre.5` and `resid_post.4` are the same tensor and `hidden_states[5]` means both; it is read as `resid_post.4`.
- TransformerLens `attn.hook_out`, `mlp.hook_out` and nnterp's `attentions_output[i]`, `mlps_output[i]` are what the
  module returns; where a norm follows (Gemma 2 and 3) that is not what joins the stream, and a `path:` site names it.
- `mlp.hook_pre` is the gate in a gated MLP (`mlp_gate`) and the up projection otherwise (`mlp_up`).
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from mechanome.core.errors import BadInput, NotServed, UnknownName, UnknownSite, nearest
from mechanome.engine.name_table import ROWS, SCHEMES, Row
from mechanome.engine.site import Site, parse
from mechanome.engine.weights import weight

if TYPE_CHECKING:
    from mechanome.engine.model import Model


_PATTERNS = tuple((re.compile(row.pattern), row) for row in ROWS if row.reads)


class NearMatch(UserWarning):
    """A foreign name whose tensor may differ from the site's; the message says how."""


@dataclass(frozen=True)
class Foreign:
    """What a foreign name means.

    Args:
        text: the name as given.
        scheme: whose name it is.
        site: our site.
        exact: whether the site's tensor is the foreign tensor itself.
        note: the difference, or a remark; empty where there is none.
        norm: where the foreign tensor is taken before a norm's gain and bias: which norm, as in `ln1.5`.
    """

    text: str
    scheme: str
    site: Site
    exact: bool = True
    note: str = ""
    norm: str = ""

    def convert(self, model: Model, x: Tensor) -> Tensor:
        """Our site's tensor `[..., d_model]` as the foreign tensor, taking a norm's bias and gain off again.

        Raises:
            NotServed: an inexact name for which there is no conversion.
        """
        if self.exact:
            return x
        if not self.norm:
            raise NotServed(f"'{self.text}' from {self.site}", self.note, "pass model= to look it up exactly")
        gain, tower = weight(model, f"g_{self.norm}", self.site.tower), self.site.tower
        if model.module.get_submodule(gain.parameter.rpartition(".")[0])._parameters.get("bias") is not None:
            x = x - weight(model, f"b_{self.norm}", tower).value
        return x / gain.value


def lookup(text: str, model: Model | None = None, layer: int | None = None) -> Foreign:
    """What a foreign name means, whose it is and how exact the match is.

    Args:
        text: for example `blocks.5.attn.hook_z`, `hidden_states[3]`, `mlp.hook_in`, `layers_output[5]`.
        model: settles names whose meaning depends on the model, and indices that count from the end.
        layer: for circuit-tracer names, which hold no layer.

    Raises:
        UnknownName: no scheme has such a name.
        NotServed: it has no equivalent, or it cannot be told without the model or the layer.
        UnknownSite: a layer or index that this model does not have.
    """
    found = _match(text, layer)
    if found is None:
        raise UnknownName(f"foreign name '{text}'", "no tool has it", nearest(text, [r.template for r in ROWS]))
    row, index = found
    if row.refused:
        raise NotServed(f"'{text}'", row.refused, row.fix)
    if row.layered and index is None:
        raise NotServed(f"'{text}'", "names of circuit-tracer hold no layer", "pass layer=")
    index = _counted(text, row, index, model) if index is not None else None
    if row.resolve is not None and model is not None:
        return Foreign(text, row.scheme, row.resolve(model, row.tower, index or 0))
    if not row.point:
        raise NotServed(f"'{text}'", row.note, "pass model=, or name the site")
    point, at = (row.point, index) if row.usual is None or index is None else row.usual(index)
    norm = "" if not row.norm else row.point if index is None else f"{row.point}.{index}"
    exact = row.exact and row.resolve is None
    return Foreign(text, row.scheme, Site(point, at, tower=row.tower), exact, row.note, norm)


def from_foreign(text: str, model: Model | None = None, layer: int | None = None) -> Site:
    """The site of a foreign name; warns (`NearMatch`) where its tensor may differ from the foreign one.

    Args and errors are those of `lookup`, which also tells the difference and converts.
    """
    found = lookup(text, model, layer)
    if not found.exact:
        warnings.warn(f"'{text}' may differ from {found.site}: {found.note}", NearMatch, stacklevel=2)
    return found.site


def translate(name: str | Site, to: str = "mechanome", model: Model | None = None, layer: int | None = None) -> str:
    """A name in another tool's language.

    Args:
        name: a site, its string form, or any foreign name.
        to: one of `SCHEMES`: `mechanome`, `transformer_lens` (version 4), `saelens`, `circuit_tracer` (whose names hold
            no layer), `hugging_face`, `nnterp`.
        model: settles what depends on the model, such as the last hidden state.
        layer: the layer of a circuit-tracer name.

    Raises:
        BadInput: no such scheme. UnknownName, UnknownSite: no such name.
        NotServed: no name there means exactly this tensor, or it cannot be told without the model.
    """
    if to not in SCHEMES:
        raise BadInput(f"scheme '{to}'", "there is no such scheme", nearest(to, SCHEMES))
    site = _site(name, model, layer)
    if to == "mechanome":
        return str(site)
    if site.selector:
        raise NotServed(
            f"'{site}' in {to}", "its names speak of whole tensors", f"translate '{site.whole}', then index"
        )
    rows = [r for r in ROWS if r.scheme == to and r.writes and (r.point, r.tower) == (site.point, site.tower)]
    for row in rows:
        if row.when is not None and not row.when(site, model):
            continue
        if row.resolve is not None and model is None:
            warnings.warn(f"'{site}' in {to}: {row.note}; pass model= to be sure", NearMatch, stacklevel=2)
        elif row.resolve is not None and model is not None and _back(row, site, model) != site:
            continue
        return row.template.format(n=_index(row, site, model))
    raise NotServed(f"'{site}' in {to}", "no name there means exactly this tensor", "use the site itself")


def _site(name: str | Site, model: Model | None, layer: int | None) -> Site:
    if isinstance(name, Site) or _match(name, layer) is None:
        return parse(name)
    return from_foreign(name, model, layer)


def _match(text: str, layer: int | None) -> tuple[Row, int | None] | None:
    for pattern, row in _PATTERNS:
        found = pattern.fullmatch(text)
        if found:
            index = found.groupdict().get("n")
            return row, layer if index is None and row.layered else None if index is None else int(index)
    return None


def _counted(text: str, row: Row, index: int, model: Model | None) -> int:
    """The index from the start, checked against the model where there is one."""
    if model is None:
        if index < 0:
            raise NotServed(f"'{text}'", "counting from the end needs the number of layers", "pass model=")
        return index
    count = len(model.architecture.tower(row.tower).blocks) + row.extra
    if not -count <= index < count:
        raise UnknownSite(f"'{text}'", f"index {index} does not exist", f"there are {count}")
    return index % count


def _index(row: Row, site: Site, model: Model | None) -> int | None:
    """The index to print: the layer's, or for the last hidden state the number of blocks."""
    if site.layer is not None:
        return site.layer + row.shift
    return len(model.architecture.tower(site.tower).blocks) if model is not None and row.layered else None


def _back(row: Row, site: Site, model: Model) -> Site:
    """What a row's name would mean in this model, read back."""
    assert row.resolve is not None
    return row.resolve(model, row.tower, (site.layer or 0) + row.shift)
