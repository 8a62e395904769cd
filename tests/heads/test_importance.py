"""Token importance: each metric from its definition, one interface, and refusals."""

from __future__ import annotations

import pytest
import torch
from head_models import CAUSAL, IDS, opened

import mechanome as mn
from mechanome.core import BadInput, UnknownName
from mechanome.heads import METRICS, contributions, rollout, token_importance


def test_the_registry_is_complete_and_runs_on_every_family() -> None:
    assert set(METRICS) == {
        "attention", "norm", "value_weighted", "rollout", "contribution_head", "contribution_layer", "gradient_x_input",
    }  # fmt: skip
    for name in [*CAUSAL, "bert"]:
        found = token_importance(opened(name), IDS, "all", answer=5)
        assert list(found) == list(METRICS)
        for metric in found.values():
            assert metric.values.shape == (8,) and metric.values.isfinite().all()
            assert metric.query == 7


@pytest.mark.parametrize("query", [-1, 4])
def test_every_metric_is_what_it_says(query: int) -> None:
    model, place = opened("llama"), query % 8
    found = token_importance(model, IDS, "all", query)
    run = model.run(IDS, capture=["pattern.*", "v.*"])
    pattern = torch.stack([run[f"pattern.{x}"][0] for x in range(3)])
    values = torch.stack([run[f"v.{x}"][0].transpose(0, 1).repeat_interleave(2, 0) for x in range(3)])
    weight = torch.stack([model.weight(f"W_O.{x}").value for x in range(3)])
    row = pattern[:, :, place]
    expected = {
        "attention": row,
        "value_weighted": row * values.norm(dim=-1),
        "norm": row * torch.einsum("lhkd,lhdm->lhkm", values, weight).norm(dim=-1),
        "contribution_head": contributions(model, IDS).values[:, :, place],
        "contribution_layer": contributions(model, IDS, "layer").values[:, place],
    }
    for name, cells in expected.items():
        assert torch.allclose(found[name].cells, cells, atol=1e-4), name
        assert torch.allclose(found[name].values, cells.flatten(0, -2).mean(0), atol=1e-4), name


def test_one_query_read_alone_gives_the_same_numbers() -> None:
    model = opened("qwen3")
    together = token_importance(model, IDS, "all", 5)
    for name in METRICS:
        alone = token_importance(model, IDS, name, 5)[name]
        assert torch.allclose(alone.values, together[name].values, atol=1e-5), name


def test_rollout_by_hand() -> None:
    """Layer 1 moves token 0 to 1 in one head of two, layer 2 moves token 1 to 2."""
    stay, first, second = torch.eye(3), torch.eye(3), torch.eye(3)
    first[1], second[2] = stay[0], stay[1]
    found = rollout(torch.stack([torch.stack([first, stay]), torch.stack([second, second])]))
    # Layer 1 leaves (1/4, 3/4, 0) at 1, half of it kept by the stream; layer 2 mixes half of that into 2.
    assert torch.allclose(found, torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0], [0.125, 0.375, 0.5]]))


def test_rollout_rows_sum_to_one_also_with_sinks_of_the_model_s_own() -> None:
    for name in ("llama", "gpt_oss"):
        values = token_importance(opened(name), IDS, "rollout")["rollout"].values
        assert float(values.sum()) == pytest.approx(1.0, abs=1e-5)


def test_gradient_times_input_is_the_slope_of_log_p_along_each_embedding() -> None:
    model = opened("gpt2")
    found = token_importance(model, IDS, "gradient_x_input", answer=9)["gradient_x_input"]
    for token in (0, 3, 7):
        scale = [mn.Scale("embed", 1 + h, pos=token) for h in (1e-2, -1e-2)]
        up, down = (model.run(IDS, edits=s, logits="last").logits.log_softmax(-1)[0, 9] for s in scale)
        assert float(found.values[token]) == pytest.approx(float(up - down) / 2e-2, rel=0.02, abs=1e-3)
    assert found.answer == 9


def test_the_answer_defaults_to_the_likeliest_token_at_the_query() -> None:
    model = opened("gpt2")
    logits = model.run(IDS).logits
    for query in (-1, 2):
        found = token_importance(model, IDS, "gradient_x_input", query)["gradient_x_input"]
        assert found.answer == int(logits[0, query].argmax())
        assert float(found.values[3:].abs().max()) > 0 or query == 2
    assert found.values[3:].abs().max() == 0  # later tokens cannot matter to query 2


def test_layers_heads_and_aggregates_choose() -> None:
    model = opened("llama")
    every = token_importance(model, IDS, "contribution_head")["contribution_head"]
    some = token_importance(model, IDS, "contribution_head", layers=[1], heads=[2, 0])["contribution_head"]
    assert torch.allclose(some.cells, every.cells[1:2, [2, 0]], atol=1e-5)
    absolute = token_importance(model, IDS, "contribution_head", aggregate="absolute")["contribution_head"]
    assert torch.allclose(absolute.values, every.cells.abs().mean((0, 1)), atol=1e-5)
    rolled = token_importance(model, IDS, "rollout", layers=[0], heads=[1])["rollout"]
    pattern = model.run(IDS, capture="pattern.0")["pattern.0"][0, 1]
    assert torch.allclose(rolled.values, rollout(pattern[None, None])[-1], atol=1e-6)


def test_rankings_and_tables() -> None:
    found = token_importance(opened("llama"), IDS, "attention")["attention"]
    assert found.ranking()[0] == int(found.values.argmax())
    assert sorted(found.ranking(exclude=[0, -1])) == [1, 2, 3, 4, 5, 6]
    assert [row[3] for row in found.table().rows] == [found.ranking().index(j) + 1 for j in range(8)]


def test_names_and_heads_that_do_not_exist() -> None:
    model = opened("llama")
    with pytest.raises(UnknownName, match="contribution_head"):
        token_importance(model, IDS, "contribution_heads")
    with pytest.raises(BadInput, match="does not distinguish"):
        token_importance(model, IDS, "contribution_layer", heads=[0])
    with pytest.raises(BadInput, match="0 to 3"):
        token_importance(model, IDS, "attention", heads=[4])
    for metric in ("attention", "rollout"):
        with pytest.raises(BadInput, match="position 8"):
            token_importance(model, IDS, metric, query=8)
    with pytest.raises(UnknownName, match="absolute"):
        token_importance(model, IDS, "attention", aggregate="absolut")  # type: ignore[arg-type]
