"""Generation means the same with and without a cache, padding, other rows, beams and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationMixin

from families import FAMILIES, build
from mechanome.core.errors import BadInput, NotServed, ShapeMismatch, UnknownName
from mechanome.engine.edits import Ablate, Add, AttentionKnockout, Custom, Edit, Patch, Scale, Where
from mechanome.engine.generation import Generation, generate
from mechanome.engine.model import Model
from mechanome.engine.plan import active

NEW = 4
DECODERS = [n for n, f in FAMILIES.items() if f.kind in ("causal", "ssm")]
EVEN = {"mamba"}  # families whose rows must be of one length
PROMPTS = [[11, 12, 13, 14, 15, 16, 17, 18], [21, 22, 23, 24, 25], [31, 32, 33, 34, 35, 36]]


@cache
def opened(name: str) -> Model:
    return Model(build(name))


def prompts(name: str) -> list[list[int]]:
    return [p[:5] for p in PROMPTS] if name in EVEN else PROMPTS


def vector(width: int, seed: int = 0, size: float = 2.0) -> Tensor:
    return size * torch.randn(width, generator=torch.Generator().manual_seed(seed))


def widths(model: Model, site: str) -> int:
    return model.run([[5, 6, 7]], capture=[site])[site].shape[-1]


At = Callable[[int, int], list[int]]
"""From prompt length and tokens generated so far to the positions that an edit must touch."""

STREAM: dict[str, tuple[dict[str, Any], At]] = {
    "everywhere": ({}, lambda n, g: list(range(n + g))),
    "decode": ({"phase": "decode"}, lambda n, g: list(range(n, n + g))),
    "prefill": ({"phase": "prefill"}, lambda n, g: list(range(n))),
    "steps": ({"steps": [0, 2]}, lambda n, g: [p for p in (n - 1, n + 1) if p < n + g]),
    "last": ({"pos": "last"}, lambda n, g: [n - 1]),
    "second": ({"pos": 1}, lambda n, g: [1]),
    "generated": ({"pos": "generated"}, lambda n, g: list(range(n, n + g))),
}


def naive(
    model: Model, ids: list[int], edits: Callable[[int, int], list[Edit]], new: int = NEW
) -> tuple[list[int], Tensor]:
    """Greedy decoding by plain runs of the growing sequence, edits at explicit positions."""
    tokens: list[int] = []
    logprobs = []
    for grown in range(new):
        logits = model.run([ids + tokens], edits=edits(len(ids), grown), logits=True).logits
        assert logits is not None
        scores = logits[0, -1].float().log_softmax(-1)
        tokens.append(int(scores.argmax()))
        logprobs.append(scores[tokens[-1]])
    return tokens, torch.stack(logprobs)


def same(a: Generation, b: Generation, rows: list[int] | None = None) -> None:
    rows = list(range(len(a.tokens))) if rows is None else rows
    assert [a.tokens[r] for r in rows] == [b.tokens[r] for r in range(len(rows))]
    for i, r in enumerate(rows):
        torch.testing.assert_close(a.logprobs[r], b.logprobs[i], atol=1e-4, rtol=0)


def agrees(model: Model, family: str, edits: list[Edit], by_hand: Callable[[int, int], list[Edit]], row: int) -> bool:
    """Cached = uncached = by hand; returns whether the edit changed anything."""
    rows = prompts(family)
    with_cache = generate(model, rows, max_new_tokens=NEW, edits=edits, eos=None)
    without = generate(model, rows, max_new_tokens=NEW, edits=edits, eos=None, cache=False)
    same(with_cache, without)
    tokens, logprobs = naive(model, rows[row], by_hand)
    assert with_cache.tokens[row] == tokens
    torch.testing.assert_close(with_cache.logprobs[row], logprobs, atol=1e-4, rtol=0)
    plain = plain_generation(family)
    return any(not torch.allclose(a, b, atol=1e-3) for a, b in zip(with_cache.logprobs, plain.logprobs))


@cache
def plain_generation(family: str) -> Generation:
    return generate(opened(family), prompts(family), max_new_tokens=NEW, eos=None)


@pytest.mark.parametrize("family", DECODERS)
def test_stream_edits_mean_the_same_with_and_without_a_cache(family: str) -> None:
    model = opened(family)
    v = vector(widths(model, "resid_post.1"))
    for i, (name, (where, at)) in enumerate(STREAM.items()):

        def by_hand(n: int, g: int, at: At = at) -> list[Edit]:
            return [Add("resid_post.1", v, pos=at(n, g))] if at(n, g) else []

        assert agrees(model, family, [Add("resid_post.1", v, **where)], by_hand, i % 3), name


@pytest.mark.parametrize("family", [n for n in DECODERS if FAMILIES[n].registry])
def test_key_value_and_pattern_edits_mean_the_same_with_and_without_a_cache(family: str) -> None:
    model = opened(family)
    layer = 1  # attends in every family of the table
    for i, point in enumerate(("k", "v")):
        site = f"{point}.{layer}"
        for where, at in (STREAM["everywhere"], STREAM["second"], STREAM["decode"]):

            def by_hand(n: int, g: int, at: At = at, site: str = site) -> list[Edit]:
                return [Scale(site, -1.5, pos=at(n, g))] if at(n, g) else []

            changed = agrees(model, family, [Scale(site, -1.5, **where)], by_hand, i)
            assert changed or where.get("pos") == 1, site  # a window may hide the second token
    for renormalize in (True, False):
        edits = AttentionKnockout([layer], -1, "generated", renormalize=renormalize)

        def cut(n: int, g: int, renormalize: bool = renormalize) -> list[Edit]:
            return AttentionKnockout([layer], n - 1, list(range(n, n + g)), renormalize=renormalize) if g else []

        assert agrees(model, family, edits, cut, 2)


@pytest.mark.parametrize("family", DECODERS)
def test_rows_equal_their_single_results_and_padding_side_does_not_matter(family: str) -> None:
    model, rows = opened(family), prompts(family)
    v = vector(widths(model, "resid_post.1"), 3)
    edits = [
        Add("resid_post.1", v, phase="decode"),
        Scale("mlp_out.2" if family != "mamba" else "mixer_out.2", 0.5, pos="last"),
    ]
    together = generate(model, rows, max_new_tokens=NEW, edits=edits, eos=None)
    for r, ids in enumerate(rows):
        same(together, generate(model, [ids], max_new_tokens=NEW, edits=edits, eos=None), [r])
    right = generate(model, model.encode(rows, pad="right"), max_new_tokens=NEW, edits=edits, eos=None)
    assert right.tokens == together.tokens


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("edited", [False, True])
def test_no_edit_and_a_zero_edit_are_plain_generate_bit_by_bit(family: str, edited: bool) -> None:
    model, rows = opened(family), prompts(family)
    points = ["resid_post.1"] + (["k.1", "v.1"] if FAMILIES[family].registry else [])
    ours = generate(model, rows, max_new_tokens=NEW, edits=[Add(p, 0.0) for p in points] if edited else ())
    batch = model.encode(rows, pad="left")
    theirs = GenerationMixin.generate(
        build(family), **batch.arguments, max_new_tokens=NEW, return_dict_in_generate=True, output_logits=True
    )
    new = theirs.sequences[:, batch.frame.width :]
    for row, tokens in enumerate(ours.tokens):
        assert new[row, : len(tokens)].tolist() == tokens
        steps = [theirs.logits[s].log_softmax(-1)[row, t] for s, t in enumerate(tokens)]
        assert torch.equal(ours.logprobs[row], torch.stack(steps))


def test_edits_of_single_rows_and_per_row_values() -> None:
    model = opened("llama")
    v = vector(32)
    plain = generate(model, PROMPTS, max_new_tokens=NEW)
    one = generate(model, PROMPTS, max_new_tokens=NEW, edits=[Add("resid_post.1", v, rows=[1])])
    assert torch.equal(one.logprobs[0], plain.logprobs[0])
    same(one, generate(model, [PROMPTS[1]], max_new_tokens=NEW, edits=[Add("resid_post.1", v)]), [1])
    each = torch.stack([v, torch.zeros(32), -v])
    many = generate(model, PROMPTS, max_new_tokens=NEW, edits=[Add("resid_post.1", each)])
    same(many, generate(model, [PROMPTS[2]], max_new_tokens=NEW, edits=[Add("resid_post.1", -v)]), [2])
    torch.testing.assert_close(many.logprobs[1], plain.logprobs[1])


def test_a_donor_run_is_paired_by_position_not_by_column() -> None:
    model = opened("gpt2")
    donor = model.run([p[::-1] for p in PROMPTS], capture=["resid_post.1"])  # padded on the right
    patched = generate(model, PROMPTS, max_new_tokens=NEW, edits=[Patch("resid_post.1", donor, pos="prompt")])
    alone = model.run([PROMPTS[1][::-1]], capture=["resid_post.1"])
    same(
        patched,
        generate(model, [PROMPTS[1]], max_new_tokens=NEW, edits=[Patch("resid_post.1", alone, pos="prompt")]),
        [1],
    )
    everywhere = [Patch("resid_post.1", donor)]
    first = generate(model, PROMPTS, max_new_tokens=1, edits=everywhere)
    same(first, generate(model, [PROMPTS[1]], max_new_tokens=1, edits=[Patch("resid_post.1", alone)]), [1])
    with pytest.raises(ShapeMismatch):  # the donor has no generated positions
        generate(model, PROMPTS, max_new_tokens=NEW, edits=everywhere)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "jamba"])
def test_captures_are_the_states_that_predict_each_token(family: str, cached: bool) -> None:
    model = opened(family)
    sites = ["resid_post.2", "z.1", "k.1", "pattern.1", "logits", "q.1.h1"]
    got = generate(model, PROMPTS, max_new_tokens=NEW, capture=sites, eos=None, cache=cached)
    assert got.axes("z.1") == ("row", "step", "head", "d_head")
    assert got.axes("pattern.1") == ("row", "head", "step", "key")
    for row, ids in enumerate(PROMPTS):
        whole = model.run([ids + got.tokens[row]], capture=sites)
        n = len(ids)
        for site in sites:
            ours, theirs = got[site][row], whole[site][0]
            if site == "pattern.1":
                ours, theirs = ours.transpose(0, 1), theirs.transpose(0, 1)
            for step in range(NEW):
                mine, real = ours[step], theirs[n - 1 + step]
                if site == "pattern.1":
                    width = n + step
                    assert mine[..., width:].isnan().all() and float(real[..., width:].abs().sum()) == 0.0
                    mine, real = mine[..., :width], real[..., :width]
                    assert float(real[mine.isnan()].abs().sum()) == 0.0  # keys that left the window
                    real = torch.where(mine.isnan(), mine, real)
                    assert float(mine.nansum()) > 1.0
                torch.testing.assert_close(mine, real, equal_nan=True, atol=2e-5, rtol=1e-4, msg=f"{site} {row} {step}")


def test_prompt_positions_encoder_sites_and_heads_can_be_captured() -> None:
    model = opened("llama")
    kept = generate(model, PROMPTS, max_new_tokens=2, capture=["z.1", "logits", "pattern.1"], pos=[0, -1])
    run = model.run(PROMPTS, capture=["z.1", "logits", "pattern.1"], pos=[0, -1])
    assert kept.axes("z.1") == ("row", "pos", "head", "d_head")
    torch.testing.assert_close(kept["z.1.h2"], run["z.1.h2"])
    torch.testing.assert_close(kept["logits"], run["logits"])
    stepped = generate(model, PROMPTS, max_new_tokens=2, capture="head_out.1")
    assert stepped.axes("head_out.1") == ("row", "step", "head", "d_model")
    torch.testing.assert_close(stepped["head_out.1"][:, 0], model.run(PROMPTS, ["head_out.1"], pos=-1)["head_out.1"])
    torch.testing.assert_close(kept["pattern.1"][1][..., :5], run["pattern.1"][1][..., :5])
    t5 = opened("t5")
    source = {k: v for k, v in FAMILIES["t5"].inputs(t5.module, 9).items() if not k.startswith("decoder")}
    got = generate(
        t5, source, max_new_tokens=3, capture=["encoder/resid_post.1", "decoder/resid_post.1", "decoder/cross_k.1"]
    )
    assert got["encoder/resid_post.1"].shape[:2] == (3, 9) and got.axes("encoder/resid_post.1")[1] == "pos"
    assert got["decoder/resid_post.1"].shape[:2] == (3, 3) and got.axes("decoder/resid_post.1")[1] == "step"
    assert got["decoder/cross_k.1"].shape[:2] == (3, 9)


def test_a_reducer_sees_every_step_of_running_rows_and_nothing_is_stored() -> None:
    model = opened("qwen2")
    plain = generate(model, PROMPTS, max_new_tokens=6, capture=["resid_post.1"], eos=None)
    end = plain.tokens[1][2]
    seen: list[tuple[str, int, int]] = []
    total = torch.zeros(32)

    class Sum:
        def update(self, site: Any, x: Tensor) -> None:
            total.add_(x.sum(0))

    stored = generate(model, PROMPTS, max_new_tokens=6, capture=["resid_post.1"], eos=end)
    lean = generate(model, PROMPTS, max_new_tokens=6, capture=["resid_post.1"], eos=end, reduce=Sum())
    generate(
        model,
        PROMPTS,
        max_new_tokens=6,
        capture=["resid_post.1"],
        eos=end,
        reduce=lambda s, i, x: seen.append((str(s), i, len(x))),
    )
    assert lean.captured == {} and stored.finish[1] == "eos" and len(stored.tokens[1]) < 6
    torch.testing.assert_close(total, stored["resid_post.1"].nan_to_num(0.0).sum((0, 1)))
    assert stored["resid_post.1"][1, len(stored.tokens[1]) :].isnan().all()
    assert [n for _, _, n in seen] == [sum(len(t) > s for t in stored.tokens) for s in range(len(seen))]
    half = generate(model, PROMPTS, max_new_tokens=2, capture=["resid_post.1"], to=torch.float16)
    assert half["resid_post.1"].dtype == torch.float16


@pytest.mark.parametrize("family", ["llama", "gemma2", "t5"])
def test_beams_are_edited_as_their_prompt(family: str) -> None:
    model = opened(family)
    inputs: Any = PROMPTS
    site = "resid_post.1"
    if family == "t5":
        inputs = {k: v for k, v in FAMILIES["t5"].inputs(model.module, 9).items() if not k.startswith("decoder")}
        site = "decoder/resid_post.1"
    plain = generate(model, inputs, max_new_tokens=NEW, num_beams=3)
    arguments = dict(model.encode(inputs, pad="left").arguments)
    theirs = GenerationMixin.generate(
        build(family), **arguments, max_new_tokens=NEW, num_beams=3, return_dict_in_generate=True, output_scores=True
    )
    new = theirs.sequences[:, -theirs.beam_indices.shape[1] :]
    assert [new[r, : len(t)].tolist() for r, t in enumerate(plain.tokens)] == plain.tokens
    score = torch.stack([p.sum() / len(p) for p in plain.logprobs])
    torch.testing.assert_close(score, theirs.sequences_scores, atol=1e-5, rtol=1e-5)

    v = vector(32, 5)
    edits = [Add(site, v, rows=[1], phase="decode"), Add(site, torch.stack([0 * v, 0 * v, v]), pos="last")]
    kept = generate(model, inputs, max_new_tokens=NEW, num_beams=3, edits=edits, capture=[site], eos=None)
    slow = generate(model, inputs, max_new_tokens=NEW, num_beams=3, edits=edits, eos=None, cache=False)
    same(kept, slow)
    assert kept.tokens[1] != plain.tokens[1] or not torch.allclose(kept.logprobs[1], plain.logprobs[1], atol=1e-3)
    if family == "t5":
        return
    ids, tokens = PROMPTS[1], kept.tokens[1]
    whole = model.run([ids + tokens], capture=[site], edits=[Add(site, v, pos=list(range(5, 5 + NEW)))])
    torch.testing.assert_close(kept[site][1], whole[site][0, 4 : 4 + NEW], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(
        kept.logprobs[1],
        whole.logits[0, 4:-1].log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0],
        atol=1e-4,
        rtol=0,
    )


def frozen(edits: list[Edit]) -> list[Edit]:
    """Edits of a generation behind a start token as edits of one plain run, where all but position 0 was generated."""
    at = {"decode": list(range(1, NEW)), None: None}
    out = []
    for edit in edits:
        pos = 0 if edit.where.pos == "last" or edit.where.steps == (0,) else edit.where.pos or at[edit.where.phase]
        out.append(edit.at(pos=pos, phase=None, steps=None))
    return out


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_encoder_decoder_edits(family: str) -> None:
    model = opened(family)
    inputs = {k: v for k, v in FAMILIES[family].inputs(model.module, 9).items() if not k.startswith("decoder")}
    v = vector(32, 7)
    plain = generate(model, inputs, max_new_tokens=NEW, eos=None)
    ids = torch.full((3, 1), model.config.decoder_start_token_id)
    cases = [
        [Add("encoder/resid_post.1", v, pos=2)],
        [Add("decoder/resid_post.1", v, phase="decode")],
        [Add("decoder/resid_post.1", v, steps=[0])],
        [Scale("decoder/v.1", -1.5)],
        [Ablate("decoder/cross_pattern.1")],
        [Scale("decoder/cross_v.1", -1.5, pos=1)],
        [Edit("decoder/cross_pattern.1", "ablate", 0.0, Where(pos="last", keys=1))],
    ]
    for edits in cases:
        fast = generate(model, inputs, max_new_tokens=NEW, edits=edits, eos=None)
        same(fast, generate(model, inputs, max_new_tokens=NEW, edits=edits, eos=None, cache=False))
        assert any(not torch.allclose(a, b, atol=1e-3) for a, b in zip(fast.logprobs, plain.logprobs)), edits
        tokens = torch.tensor(fast.tokens)
        hand = model.run(
            {**inputs, "decoder_input_ids": torch.cat([ids, tokens[:, :-1]], 1)}, edits=frozen(edits)
        ).logits
        assert hand is not None
        wanted = hand.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]
        torch.testing.assert_close(torch.stack(fast.logprobs), wanted, atol=1e-4, rtol=0)
    # Step 0 is the start token: by hand.
    by_hand = model.run({**inputs, "decoder_input_ids": ids}, edits=[Add("decoder/resid_post.1", v, pos=0)]).logits
    first = generate(model, inputs, max_new_tokens=1, edits=[Add("decoder/resid_post.1", v, steps=[0])], eos=None)
    assert by_hand is not None and [t[0] for t in first.tokens] == by_hand[:, -1].argmax(-1).tolist()


def test_sampling_has_its_own_random_numbers() -> None:
    model = opened("llama")
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = generate(model, PROMPTS, max_new_tokens=6, temperature=2.0, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert generate(model, PROMPTS, max_new_tokens=6, temperature=2.0, seed=7).tokens == a.tokens
    assert generate(model, PROMPTS, max_new_tokens=6, temperature=2.0, seed=8).tokens != a.tokens
    alone = generate(model, [PROMPTS[2]], max_new_tokens=6, temperature=2.0, seed=a.seeds[2])
    assert alone.tokens[0] == a.tokens[2]
    fresh = generate(model, PROMPTS, max_new_tokens=6, do_sample=True)
    assert generate(model, PROMPTS, max_new_tokens=6, do_sample=True, seed=fresh.seeds).tokens == fresh.tokens
    assert (
        generate(model, PROMPTS, max_new_tokens=6, top_k=1, seed=3).tokens
        == generate(model, PROMPTS, max_new_tokens=6).tokens
    )


def test_samples_follow_the_distribution() -> None:
    model = opened("llama")
    n = 400
    drawn = generate(model, [PROMPTS[0]] * n, max_new_tokens=1, temperature=1.0, top_k=4, seed=0)
    logits = model.run([PROMPTS[0]]).logits
    assert logits is not None
    top = logits[0, -1].topk(4)
    for token, share in zip(top.indices.tolist(), top.values.softmax(-1).tolist()):
        count = sum(t == [token] for t in drawn.tokens)
        assert abs(count / n - share) < 4 * (share * (1 - share) / n) ** 0.5 + 1e-3
    assert {t[0] for t in drawn.tokens} <= set(top.indices.tolist())


class Letters:
    """A tokenizer of one letter an id."""

    eos_token_id, pad_token_id, bos_token_id = 1, 0, None

    def decode(self, ids: list[int], **kwargs: Any) -> str:
        return "".join(chr(0x4E00 + i) for i in ids)


def test_rows_end_by_eos_stop_string_or_length_and_tokens_stream() -> None:
    free = generate(opened("llama"), PROMPTS, max_new_tokens=6, eos=None)
    model = Model(build("llama"), Letters())
    heard: list[tuple[int, int, int]] = []
    text = Letters().decode(free.tokens[0][1:3])
    last = free.tokens[1][3]
    got = generate(model, PROMPTS, max_new_tokens=6, stop=text, eos=[last], on_token=lambda *a: heard.append(a))
    ends = {r: next(i for i, t in enumerate(free.tokens[r]) if t == last) for r in range(3) if last in free.tokens[r]}
    assert (
        got.finish[0] == "stop"
        and got.texts[0].endswith(text)
        and got.tokens[0] == free.tokens[0][: len(got.tokens[0])]
    )
    assert got.finish[1] == "eos" and got.tokens[1] == free.tokens[1][: ends[1] + 1]
    assert free.finish == ["length"] * 3 and all(len(t) == 6 for t in free.tokens)
    assert sorted(heard) == sorted((r, s, t) for r, row in enumerate(got.tokens) for s, t in enumerate(row))
    assert "stop" in repr(got) and "eos" in got._repr_html_() and len(got.table()) == 3
    beams = generate(model, PROMPTS, max_new_tokens=6, num_beams=2, stop=text, eos=[last])
    assert all(f in ("stop", "eos", "length") for f in beams.finish)


def test_threads_steer_independently() -> None:
    model = opened("gemma3")
    v = vector(32, 9)
    solo = [
        generate(model, PROMPTS, max_new_tokens=8, edits=[Add("resid_post.1", s * v)], temperature=1.5, seed=4)
        for s in (1, -1, 0)
    ]
    results: dict[int, Generation] = {}

    def work(i: int, scale: float) -> None:
        results[i] = generate(
            model, PROMPTS, max_new_tokens=8, edits=[Add("resid_post.1", scale * v)], temperature=1.5, seed=4
        )

    threads = [threading.Thread(target=work, args=(i, s)) for i, s in enumerate((1, -1, 0))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, alone in enumerate(solo):
        assert results[i].tokens == alone.tokens
        assert all(torch.equal(a, b) for a, b in zip(results[i].logprobs, alone.logprobs))
    assert solo[0].tokens != solo[1].tokens


def test_an_exception_leaves_the_model_clean() -> None:
    model = opened("mixtral")
    before = generate(model, PROMPTS, max_new_tokens=NEW)
    count = iter(range(100))

    def fail(x: Tensor) -> Tensor:
        if next(count) == 2:
            raise RuntimeError("third pass")
        return x + 1

    def stop(row: int, step: int, token: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(RuntimeError, match="third pass"):
        generate(model, PROMPTS, max_new_tokens=NEW, edits=[Custom("resid_post.1", fail)])
    with pytest.raises(KeyboardInterrupt):
        generate(model, PROMPTS, max_new_tokens=NEW, on_token=stop)
    assert active() is None
    after = generate(model, PROMPTS, max_new_tokens=NEW)
    assert after.tokens == before.tokens and all(torch.equal(a, b) for a, b in zip(after.logprobs, before.logprobs))


def test_embeddings_can_stand_for_a_prompt() -> None:
    model = opened("llama")
    embeds = model.module.get_input_embeddings()(torch.tensor(PROMPTS[:1])).detach()
    edits = [Add("resid_post.1", vector(32), steps=[0, 2])]
    by_vectors = generate(model, {"inputs_embeds": embeds}, max_new_tokens=NEW, edits=edits, eos=None)
    same(by_vectors, generate(model, PROMPTS[:1], max_new_tokens=NEW, edits=edits, eos=None))


def refusals() -> Iterator[tuple[str, dict[str, Any], type[Exception], str]]:
    yield "llama", {"max_new_tokens": 60}, BadInput, "at most 57"
    yield "llama", {"max_new_tokens": 0}, BadInput, "positive"
    yield "llama", {"penalty_alpha": 0.6}, NotServed, "greedy"
    yield "llama", {"assistant_model": object()}, NotServed, "drafts"
    yield "llama", {"prompt_lookup_num_tokens": 3}, NotServed, "drafts"
    yield "llama", {"num_return_sequences": 2}, NotServed, "repeat the prompt"
    yield "llama", {"repetition_penalti": 1.1}, UnknownName, "repetition_penalty"
    yield "llama", {"num_beams": 2, "temperature": 1.0}, NotServed, "num_beams=1"
    yield "llama", {"num_beams": 2, "reduce": print, "capture": "resid_post.1"}, NotServed, "beam"
    yield "llama", {"temperature": 0.0}, BadInput, "greedy"
    yield "llama", {"temperature": "x"}, BadInput, "not a real number"
    yield "llama", {"top_p": True}, BadInput, "not a real number"
    yield "llama", {"top_k": 1.5}, BadInput, "positive whole number"
    yield "llama", {"seed": "x", "do_sample": True}, BadInput, "seed"
    yield "llama", {"seed": [1.5, 2, 3], "do_sample": True}, BadInput, "not an integer"
    yield "llama", {"temperature": 0.7, "do_sample": False}, BadInput, "do_sample"
    yield "llama", {"stop": "x"}, BadInput, "tokenizer"
    yield "llama", {"capture": "resid_post.1", "pos": "generated"}, BadInput, "leave pos out"
    yield "llama", {"seed": [1, 2], "do_sample": True}, BadInput, "one per row"
    yield "llama", {"edits": [Add("path:model.layers.1", 1.0, steps=[1])]}, NotServed, "phase="
    yield "mamba", {}, NotServed, "one length"
    yield "own_transformer", {}, NotServed, "run in a loop"


def test_the_context_can_be_filled_to_its_last_position() -> None:
    got = generate(opened("gpt2"), PROMPTS[:1], max_new_tokens=57, eos=None)
    assert len(got.tokens[0]) == 57 and opened("gpt2").context == 64


@pytest.mark.parametrize(("family", "arguments", "kind", "message"), list(refusals()))
def test_refusals(family: str, arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        generate(opened(family), PROMPTS, **arguments)


def test_settings_of_the_model_count_and_are_named() -> None:
    model = Model(build("gpt2"))
    plain = generate(model, PROMPTS, max_new_tokens=6)
    model.module.generation_config.repetition_penalty = 5.0
    noted = generate(model, PROMPTS, max_new_tokens=6)
    assert noted.tokens != plain.tokens and any("repetition_penalty=5.0" in n for n in noted.notes)
    assert generate(model, PROMPTS, max_new_tokens=6, repetition_penalty=1.0).tokens == plain.tokens
    model.module.generation_config.penalty_alpha = 0.5
    with pytest.raises(NotServed, match="generation_config"):
        generate(model, PROMPTS)


def test_logits_are_edited_at_the_positions_named() -> None:
    model = opened("llama")
    push = torch.zeros(97)
    push[50] = 1e4
    got = generate(model, PROMPTS, max_new_tokens=4, edits=[Add("logits", push, steps=[0, 2])], eos=None)
    for tokens in got.tokens:
        assert [t == 50 for t in tokens] == [True, False, True, False]
    later = generate(model, PROMPTS, max_new_tokens=3, edits=[Add("logits", push, phase="decode")], eos=None)
    assert [[t == 50 for t in row] for row in later.tokens] == [[False, True, True]] * 3


def test_adapters_are_generated_with() -> None:
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    model = Model(wrapped.eval())
    edits = [Add("resid_post.1", vector(32), phase="decode"), Add("logits", torch.eye(97)[50] * 1e4, steps=[1])]
    fast = generate(model, PROMPTS, max_new_tokens=3, edits=edits, capture=["logits"])
    same(fast, generate(model, PROMPTS, max_new_tokens=3, edits=edits, cache=False))
    assert all(t[1] == 50 for t in fast.tokens) and fast["logits"].shape[:2] == (3, 3)
    without = generate(opened("llama"), PROMPTS, max_new_tokens=3, edits=edits)
    assert not torch.allclose(fast.logprobs[1], without.logprobs[1], atol=1e-2)
