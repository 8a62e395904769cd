"""Texts as sequences, roles of chats, and what a model computes over them, however it is packed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_models import WORDS, small, some_texts, tokenizer

import mechanome as mn
from families import build
from mechanome.activations import ROLES
from mechanome.activations.chats import render
from mechanome.activations.drop import Drop
from mechanome.activations.passes import passes
from mechanome.activations.reader import Reader
from mechanome.activations.sequences import Sequences, sequences
from mechanome.core.errors import BadInput, CorruptFile, NotFinite, NotServed, UnknownSite

CHAT = [{"role": "user", "content": "w1 user"}, {"role": "assistant", "content": " w3 "}]


def everything(model, data, sites, **settings):
    return Reader(model, sites, data, **settings).read(np.arange(len(data)))


def apart(a, b):
    return float((a - b).norm() / b.norm())


def test_packed_texts_are_joined_by_the_end_and_cut():
    data = sequences(["w0 w1 w2", "w3"], tokenizer(), context=4)
    w = [7, 8, 9, 10]
    assert [data[i].tolist() for i in range(len(data))] == [[1, *w[:3]], [1, 2, w[3], 2]]
    assert data.docs.tolist() == [0, 0, 0, 0, 0, 0, 1, 1] and data.roles.tolist() == [1, 0, 0, 0, 1, 1, 0, 1]
    bare = sequences(["w0 w1 w2", "w3"], tokenizer(), context=4, bos="none")
    assert bare.ids.tolist() == [7, 8, 9, 2, 10, 2] and bare.lengths.tolist() == [4, 2] and bare.first is None


@pytest.mark.parametrize("packing", ["isolated", "sequence"])
def test_texts_of_their_own_begin_anew_and_lose_their_end(packing):
    data = sequences(["w0 w1 w2", "", "w3"], tokenizer(), packing=packing, context=3)
    assert [data[i].tolist() for i in range(len(data))] == [[1, 7, 8], [1, 10]]
    assert data.truncated == 1 and data.docs.tolist() == [0, 0, 0, 2, 2]


def test_wanted_tokens_are_exact_or_refused():
    for packing in ("packed", "isolated", "sequence"):
        data = sequences(some_texts(), tokenizer(), packing=packing, context=8, tokens=37)
        assert data.tokens == 37 == data.lengths.sum() and data.lengths.min() > 0
    with pytest.raises(BadInput, match=r"tokens=1000: the texts hold only \d+"):
        sequences(some_texts(), tokenizer(), tokens=1000)
    for empty in ([], ["", ""]):
        with pytest.raises(BadInput, match="no token"):
            sequences(empty, tokenizer())


def test_chats_say_who_wrote_what():
    found = render(CHAT, tokenizer())
    assert [found.text[a:b] for a, b, _ in found.spans] == ["w1 user", "w3"]
    data = sequences([CHAT, "w5"], tokenizer(), packing="sequence")
    names = [ROLES[i] for i in data.roles]
    assert names[:9] == ["template"] * 2 + ["user"] * 2 + ["template"] * 3 + ["assistant", "template"]
    assert names[9:] == ["template", "text"]
    assert data.ids[:9].tolist() == [1, 4, 8, 4, 2, 1, 5, 10, 2]  # its own first token is not put twice


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ([{"role": "bot", "content": "w1"}], BadInput, "role 'bot'"),
        ([{"role": "user", "content": None}], BadInput, "no text"),
        (3, BadInput, "type int"),
        ("\ud800", BadInput, "surrogate"),
    ],
    ids=["role", "content", "type", "surrogate"],
)
def test_what_is_no_text_is_refused(text, error, says):
    with pytest.raises(error, match=says):
        sequences([text], tokenizer())


def test_templates_that_cannot_be_followed_are_refused():
    odd = tokenizer()
    odd.chat_template = "{% for m in messages %}{{ m['content'] | length }} {{ m['content'] }}{% endfor %}"
    with pytest.raises(NotServed, match="message 0"):
        render(CHAT, odd)
    odd.chat_template = None
    with pytest.raises(BadInput, match="no chat template"):
        render(CHAT, odd)
    with pytest.raises(BadInput, match="one string"):
        sequences("w1 w2", tokenizer())


def test_sequences_are_written_and_read(tmp_path):
    data = sequences(some_texts(), tokenizer(), packing="sequence", context=8)
    data.write(tmp_path / "tokens.safetensors")
    again = Sequences.read(tmp_path / "tokens.safetensors")
    assert again.sha256 == data.sha256 and again.packing == "sequence" and again.truncated == data.truncated > 0
    assert sequences(some_texts(seed=1), tokenizer(), packing="sequence", context=8).sha256 != data.sha256
    (tmp_path / "tokens.safetensors").write_bytes(b"no")
    with pytest.raises(CorruptFile):
        Sequences.read(tmp_path / "tokens.safetensors")


def test_passes_hold_every_sequence_once_and_keep_their_limits():
    lengths = np.random.default_rng(0).integers(1, 30, 200)
    wanted = np.random.default_rng(1).permutation(200)[:150]
    for shared in (0, 32):
        for pads in (True, False):
            found = passes(wanted, lengths, shared=shared, at_once=100, pads=pads)
            assert sorted(s for p in found for row in p.rows for s in row) == sorted(wanted)
            for group in found:
                widths = [int(lengths[list(row)].sum()) for row in group.rows]
                assert len(widths) == 1 or max(widths) * len(widths) <= 100
                assert pads or len({*widths}) == 1
                assert max(widths) <= max(shared, 30)
    padding = sum(max(w) * len(w) - sum(w) for p in passes(wanted, lengths, shared=0, at_once=100, pads=True)
                  for w in [[int(lengths[r[0]]) for r in p.rows]])  # fmt: skip
    assert padding < 0.1 * lengths[wanted].sum()


def alone(model, data, site):
    """The rows of every sequence, each run by itself by the engine."""
    runs = (model.run([data[i].tolist()], capture=[site]) for i in range(len(data)))
    return torch.cat([run[site][0].flatten(1) for run in runs])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "gemma3", "mixtral"])
def test_however_packed_rows_are_as_alone(family):
    """Windows, learned and rotary positions: neither others in a row nor padding changes anything."""
    model, sites = small(family), ["resid_post.1", "z.0", "mlp_out.0"]
    for packing in ("isolated", "sequence"):
        data = sequences(some_texts(10), tokenizer(), packing=packing, context=24)
        rows = everything(model, data, sites, context=48, compute="model")
        for site in sites:
            assert apart(rows[site], alone(model, data, site)) < 1e-4, (packing, site)
        assert rows.labels["pos"].tolist() == [p for n in data.lengths for p in range(n)]
        assert rows.labels["token"].tolist() == data.ids.tolist()


@pytest.mark.parametrize("family", ["mamba", "jamba", "opt"])
def test_models_that_mix_texts_of_a_row_are_refused(family):
    data = sequences(some_texts(), tokenizer(), packing="isolated", context=24)
    with pytest.raises(NotServed, match="see each other"):
        Reader(small(family), "resid_post.1", data, context=48)


def test_a_pass_ends_at_the_deepest_site():
    model = small()
    ran = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.append(name))
        for name, module in model.module.named_modules()
        if name.endswith(("layers.0", "layers.1", "lm_head"))
    ]
    try:
        reader = Reader(model, ["resid_post.0", "ln1.0"], sequences(some_texts(), tokenizer(), context=16))
        assert any(name.endswith("lm_head") for name in ran)  # the first pass is a whole one
        ran.clear()
        reader.read(np.arange(3))
        assert ran == [] or all(name.endswith("layers.0") for name in ran)
    finally:
        for handle in handles:
            handle.remove()


def test_order_is_that_of_the_request():
    data = sequences(some_texts(), tokenizer(), packing="sequence")
    reader = Reader(small(), "resid_post.1", data, compute="model", at_once=30)
    rows = reader.read(np.array([5, 2, 9]))
    assert list(dict.fromkeys(rows.labels["seq"].tolist())) == [5, 2, 9]
    assert apart(rows.where(seq=2).x, reader.read(np.array([2])).x) < 1e-5


def test_bfloat16_leaves_the_model_as_it_is():
    model, data = small(), sequences(some_texts(), tokenizer(), context=16)
    low = everything(model, data, "resid_post.1", compute="bf16")
    full = everything(model, data, "resid_post.1", compute="model")
    assert model.dtype == torch.float32 and 1e-5 < apart(low.x.float(), full.x) < 0.05


@pytest.mark.parametrize(
    ("sites", "settings", "error", "says"),
    [
        ("resid_pst.1", {}, UnknownSite, "resid_post"),
        ("pattern.0", {}, NotServed, "row per token"),
        ("head_out.0", {}, NotServed, "use z"),
        ("resid_post.1", {"compute": "fp16"}, BadInput, "compute"),
        ("resid_post.1", {"at_once": 0}, BadInput, "rows_at_once"),
    ],
    ids=["unknown", "pattern", "derived", "compute", "at_once"],
)
def test_wrong_requests_are_refused(sites, settings, error, says):
    with pytest.raises(error, match=says):
        Reader(small(), sites, sequences(some_texts(), tokenizer(), context=16), **settings)


def test_longer_than_the_model_is_refused():
    data = sequences([" ".join(WORDS)], tokenizer(), packing="sequence", context=70)
    with pytest.raises(BadInput, match="the model's is 64"):
        Reader(small(), "resid_post.1", data)


def test_rows_that_are_no_numbers_are_named():
    model = mn.load(build("llama"), tokenizer=tokenizer(), check="off")
    data = sequences(some_texts(), tokenizer(), packing="sequence")
    reader = Reader(model, "resid_post.1", data)
    with torch.no_grad():
        model.module.get_input_embeddings().weight[int(data[4][2])] = float("nan")
    with pytest.raises(NotFinite, match=r"'resid_post.1' of sequence \d+, position \d+"):
        reader.read(np.arange(len(data)))


def test_drop_is_what_it_says():
    data = sequences(["w0 w1 w2", "w3 w4"], tokenizer(), packing="sequence")
    seq, pos = data.places(np.arange(2))
    assert Drop().by_place(data, seq, pos).tolist() == [False, True, True, True, False, True, True]
    assert Drop(bos=False, positions=(0, 2)).by_place(data, seq, pos).tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert Drop.nothing().by_place(data, seq, pos).all()
    values = {"a": torch.tensor([[1.0], [10.5], [2.0]]), "b": torch.tensor([[1.0], [1.0], [100.0]])}
    assert Drop().by_norm(values, {"a": 1.0, "b": 10.1}).tolist() == [True, False, True]
    assert Drop.nothing().by_norm(values, {}).all()
    bare = sequences(["w0 w1"], tokenizer(), packing="sequence", bos="none")
    assert Drop().by_place(bare, *bare.places(np.arange(1))).all()
    for wrong in ({"max_norm_multiple": 1}, {"positions": (-1,)}):
        with pytest.raises(BadInput):
            Drop(**wrong)
