"""Edits as files: one safetensors file with JSON beside it, for the command line, studies and replays.

    save_edits("steer.safetensors", [mn.Add("resid_post.12", vector, scale=4)])
    edits = load_edits("steer.safetensors")

Values that come from another run are stored with the donor's tensor, so a file needs nothing else. A `Custom`
function, or a basis of a class that is not listed in `BASES`, has no file form and is refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from mechanome.core.errors import CorruptFile, MechanomeError, NotServed
from mechanome.core.tensor_files import read_tensors, write_tensors
from mechanome.engine.bases import Basis, Directions, Neurons, SingularVectors, Subspace
from mechanome.engine.edits import Edit, FromRows, FromRun, Resample, Value, Where
from mechanome.engine.frame import Frame
from mechanome.engine.site import Site, parse

FORMAT, VERSION = "mechanome-edits", 1

BASES: dict[str, type[Any]] = {
    "directions": Directions,
    "neurons": Neurons,
    "singular_vectors": SingularVectors,
    "subspace": Subspace,
}


@dataclass(frozen=True)
class StoredDonor:
    """A donor read from a file: one site of a run, with where its real tokens were."""

    site: Site
    values: Tensor
    frame: Frame

    def source(self, site: Site) -> tuple[Tensor, Frame]:
        """The stored tensor.

        Raises:
            NotServed: another site than the stored one.
        """
        if site.whole != self.site:
            raise NotServed(f"donor {site}", f"the file holds {self.site}", "save the edit again")
        return self.values, self.frame


def save_edits(path: str | os.PathLike[str], edits: Sequence[Edit]) -> None:
    """Write edits to a file, atomically.

    Raises:
        NotServed: an edit without a file form (a custom function, a basis of another class).
    """
    tensors: dict[str, Tensor] = {}
    rows = [_packed(edit, f"edit{i}", tensors) for i, edit in enumerate(edits)]
    write_tensors(path, tensors, format=FORMAT, version=VERSION, meta={"edits": rows})


def load_edits(path: str | os.PathLike[str]) -> list[Edit]:
    """Read edits from a file.

    Raises:
        CorruptFile: damaged, or of another format.
    """
    file = read_tensors(path, format=FORMAT, version=VERSION)
    try:
        return [_unpacked(row, file.tensors) for row in file.meta["edits"]]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(str(path), f"an edit cannot be read ({error!r})", "write the file again") from error
    except MechanomeError as error:
        raise CorruptFile(str(path), f"an edit is not valid ({error})", "write the file again") from error


def _packed(edit: Edit, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    if edit.function is not None:
        raise NotServed(f"a file of {edit}", "a function has no file form", "express it with Add, Scale, Patch ...")
    where = {k: _plain(v) for k, v in asdict(edit.where).items() if v is not None}
    row = {"site": str(edit.site), "op": edit.op, "where": where, "value": _value(edit, name, tensors)}
    if edit.basis is not None:
        row["basis"] = _basis(edit.basis, name, tensors)
    return row


def _plain(value: Any) -> Any:
    """Positions as JSON: slices become a mapping."""
    if isinstance(value, slice):
        return {"start": value.start, "stop": value.stop, "step": value.step}
    if isinstance(value, (str, int)):
        return value
    return [_plain(v) for v in value]


def _positions(value: Any) -> Any:
    return slice(value["start"], value["stop"], value["step"]) if isinstance(value, dict) else value


def _value(edit: Edit, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    value = edit.value
    if isinstance(value, Tensor):
        tensors[f"{name}.value"] = value
        return {"kind": "tensor", "name": f"{name}.value"}
    if isinstance(value, FromRun):
        donor, frame = value.run.source(edit.site)
        tensors[f"{name}.donor"] = donor
        spans = [{k: list(v) for k, v in labels.items()} for labels in frame.spans]
        kept = {"starts": frame.starts, "lengths": frame.lengths, "width": frame.width, "offset": frame.offset}
        return {
            "kind": "run",
            "name": f"{name}.donor",
            "rows": _plain_or_none(value.rows),
            "pos": _plain_or_none(value.pos),
        } | {"frame": {k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()} | {"spans": spans}}
    if isinstance(value, FromRows):
        return {"kind": "rows", "rows": list(value.rows), "pos": _plain_or_none(value.pos)}
    if isinstance(value, Resample):
        return {"kind": "resample", "seed": value.seed}
    if isinstance(value, tuple):
        return {"kind": "range", "lo": value[0], "hi": value[1]}
    # Infinity (a masked score) has no JSON number.
    return {"kind": "number", "value": repr(float(value or 0.0))}


def _plain_or_none(value: Any) -> Any:
    return None if value is None else _plain(value)


def _basis(basis: Basis, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    kind = next((k for k, c in BASES.items() if type(basis) is c), None)
    if kind is None:
        known = ", ".join(BASES)
        raise NotServed(f"a file of basis {type(basis).__name__}", "its class has no file form", f"use one of {known}")
    fields: dict[str, Any] = {}
    for field_name in basis.__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(basis, field_name)
        if field_name.startswith("_"):
            continue
        if isinstance(value, Tensor):
            tensors[f"{name}.basis.{field_name}"] = value
            fields[field_name] = {"tensor": f"{name}.basis.{field_name}"}
        else:
            fields[field_name] = list(value) if isinstance(value, (list, tuple, range)) else value
    return {"kind": kind, "fields": fields}


def _unpacked(row: dict[str, Any], tensors: dict[str, Tensor]) -> Edit:
    where = {k: _positions(v) for k, v in row["where"].items()}
    site = parse(row["site"])
    return Edit(
        site,
        row["op"],
        _read_value(row, site, tensors),
        Where(**where),
        _read_basis(row["basis"], tensors) if "basis" in row else None,
    )


def _read_value(row: dict[str, Any], site: Site, tensors: dict[str, Tensor]) -> Value:
    value = row["value"]
    kind = value["kind"]
    if kind == "tensor":
        return tensors[value["name"]]
    if kind == "run":
        f = value["frame"]
        spans = tuple(f["spans"])
        frame = Frame(tuple(f["starts"]), tuple(f["lengths"]), f["width"], f["offset"], spans=spans)
        donor = StoredDonor(site.whole, tensors[value["name"]], frame)
        return FromRun(donor, value["rows"], _positions(value["pos"]))
    if kind == "rows":
        return FromRows(value["rows"], _positions(value["pos"]))
    if kind == "resample":
        return Resample(value["seed"])
    if kind == "range":
        return (value["lo"], value["hi"])
    return float(value["value"])


def _read_basis(basis: dict[str, Any], tensors: dict[str, Tensor]) -> Basis:
    fields = {k: tensors[v["tensor"]] if isinstance(v, dict) else v for k, v in basis["fields"].items()}
    return BASES[basis["kind"]](**fields)
