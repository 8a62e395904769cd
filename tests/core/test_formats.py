import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mechanome.core import (
    BadInput,
    CorruptFile,
    NotFinite,
    ShapeMismatch,
    append_jsonl,
    plain,
    read_json,
    read_jsonl,
    read_tensors,
    write_json,
    write_tensors,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]
many = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@given(value=JSON)
@many
def test_json_round_trip(tmp_path, value):
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value


def test_numpy_scalars_and_tuples_become_plain():
    value = {"a": (np.float32(0.5), np.int64(3), np.bool_(True)), "b": np.float64(0.25)}
    assert plain(value) == {"a": [0.5, 3, True], "b": 0.25}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan")])
def test_not_finite_is_refused_with_its_place(tmp_path, bad):
    with pytest.raises(NotFinite, match=r"value\.rows\[1\]\.lo"):
        write_json(tmp_path / "a.json", {"rows": [{}, {"lo": bad}]})
    assert names(tmp_path) == []


@pytest.mark.parametrize("bad", [{1: 2}, {"a": {1, 2}}, {"a": object()}, {"a": torch.ones(1)}, "\ud800"])
def test_what_json_cannot_hold_is_refused(tmp_path, bad):
    with pytest.raises(BadInput):
        write_json(tmp_path / "a.json", bad)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "content", [b"", b'{"a": [1, 2', b"{'a': 1}", b'{"a": NaN}', b"[Infinity]", b"\xff\xfe{}", b"[" * 99999]
)
def test_damaged_json_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"a\.json"):
        read_json(tmp_path / "a.json")


def test_missing_files(tmp_path):
    for read in (read_json, lambda p: list(read_jsonl(p)), lambda p: read_tensors(p, format="x")):
        with pytest.raises(BadInput, match="no such file"):
            read(tmp_path / "none")


@given(rows=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=5), cut=st.integers(0, 200))
@many
def test_jsonl_survives_a_cut_anywhere(tmp_path, rows, cut):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"")
    for row in rows:
        append_jsonl(path, row)
    content = path.read_bytes()
    assert list(read_jsonl(path)) == rows
    torn = content[: min(cut, len(content))]
    path.write_bytes(torn)
    whole = rows[: torn.count(b"\n")]
    assert list(read_jsonl(path)) == whole
    append_jsonl(path, {"after": 1})
    assert list(read_jsonl(path)) == [*whole, {"after": 1}]


def test_jsonl_damage_before_the_last_line_is_refused(tmp_path):
    path = tmp_path / "m.jsonl"
    for content in (b'{"a": 1}\n{"a":\n{"a": 3}\n', b'{"a": 1}\n[2]\n'):
        path.write_bytes(content)
        with pytest.raises(CorruptFile, match="line 2"):
            list(read_jsonl(path))


def test_jsonl_is_on_disk_at_once(tmp_path):
    append_jsonl(tmp_path / "x" / "m.jsonl", {"a": 1})
    with pytest.raises(NotFinite):
        append_jsonl(tmp_path / "x" / "m.jsonl", {"a": float("nan")})
    assert (tmp_path / "x" / "m.jsonl").read_bytes() == b'{"a": 1}\n'


@given(
    shapes=st.dictionaries(st.text(min_size=1), st.lists(st.integers(0, 4), max_size=3), max_size=4),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
    meta=st.dictionaries(st.text(), JSON, max_size=2),
)
@many
def test_tensor_round_trip(tmp_path, shapes, dtype, seed, meta):
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        n: torch.randint(0, 2, s, generator=generator).to(dtype) for n, s in shapes.items() if n != "__metadata__"
    }
    write_tensors(tmp_path / "t", tensors, format="demo", version=3, meta=meta)
    found = read_tensors(tmp_path / "t", format="demo", version=4, expect=tensors)
    assert found.meta == meta
    assert found.version == 3
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found.tensors[name].dtype == dtype
        assert torch.equal(found.tensors[name], tensor)


def test_views_and_shared_memory_are_stored(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"base": base, "same": base, "row": base[1], "transposed": base.T, "parameter": torch.nn.Parameter(base)}
    write_tensors(tmp_path / "t", tensors, format="demo")
    found = read_tensors(tmp_path / "t", format="demo").tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert (tmp_path / "t").stat().st_size < 1500


@pytest.fixture
def written(tmp_path):
    tensors = {"w": torch.randn(4, 3), "b": torch.zeros(3)}
    write_tensors(tmp_path / "t", tensors, format="demo", version=2, meta={"a": 1})
    return tmp_path / "t", tensors


@given(st.floats(0, 0.999))
@many
def test_truncation_anywhere_is_refused(written, share):
    path, _ = written
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    try:
        with pytest.raises(CorruptFile, match="not a whole safetensors"):
            read_tensors(path, format="demo", version=2)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (CorruptFile, "misses c", lambda t: t | {"c": torch.ones(1)}),
        (CorruptFile, "unexpected b", lambda t: {"w": t["w"]}),
        (ShapeMismatch, r"\(4, 3\), not \(3, 4\)", lambda t: t | {"w": torch.empty(3, 4, device="meta")}),
        (CorruptFile, "float32, not torch.float16", lambda t: t | {"b": t["b"].half()}),
    ],
)
def test_the_skeleton_must_be_met(written, error, match, change):
    path, tensors = written
    read_tensors(path, format="demo", version=2, expect=tensors)
    with pytest.raises(error, match=match):
        read_tensors(path, format="demo", version=2, expect=change(tensors))


def test_other_formats_newer_versions_and_foreign_files(written, tmp_path):
    path, tensors = written
    with pytest.raises(CorruptFile, match="'demo', not 'sae'"):
        read_tensors(path, format="sae")
    with pytest.raises(CorruptFile, match="version 2 is newer than 1"):
        read_tensors(path, format="demo", version=1)
    save_file(tensors, tmp_path / "foreign")
    with pytest.raises(CorruptFile, match="None, not 'demo'"):
        read_tensors(tmp_path / "foreign", format="demo")


def test_nan_on_request(tmp_path):
    write_tensors(tmp_path / "t", {"w": torch.tensor([1.0, float("nan")]), "i": torch.ones(2).long()}, format="demo")
    assert read_tensors(tmp_path / "t", format="demo").tensors["w"].isnan().any()
    with pytest.raises(NotFinite, match="in w"):
        read_tensors(tmp_path / "t", format="demo", finite=True)
