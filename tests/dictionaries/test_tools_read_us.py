"""The real SAELens, sparsify and dictionary_learning load what we write and compute the same.

Each runs in its own environment of the benchmarks; without it the test is skipped.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mechanome.dictionaries.architectures import (
    AbsTopK,
    BatchTopK,
    Gated,
    GroupMax,
    JumpReLU,
    Matryoshka,
    Recipe,
    ReLU,
    SkipTranscoder,
    TopK,
    Transcoder,
)
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats import read, write
from mechanome.dictionaries.norm import Affine

HERE, D, F = Path(__file__).parent, 16, 40
VENVS = Path(os.environ.get("MECHANOME_BENCH_VENVS") or HERE.parents[1] / "benchmarks" / ".venvs")
CODES: dict[str, Recipe] = {
    "relu": ReLU(F),
    "topk": TopK(F, k=5),
    "abstopk": AbsTopK(F, k=5),
    "groupmax": GroupMax(F, k=5),
    "jumprelu": JumpReLU(F, threshold=0.6),
    "gated": Gated(F),
    "batchtopk": BatchTopK(F, k=5),
    "matryoshka": Matryoshka(F, k=5, groups=(10, 10, 20)),
    "transcoder": Transcoder(ReLU(F)),
    "skip": SkipTranscoder(JumpReLU(F, threshold=0.6)),
    "topk_transcoder": Transcoder(TopK(F, k=5)),
    "topk_skip": SkipTranscoder(TopK(F, k=5)),
}
TOOLS = {
    "saelens": (
        "sae-lens",
        ["relu", "topk", "abstopk", "jumprelu", "gated", "batchtopk", "matryoshka", "transcoder", "skip"],
    ),
    "mechanome": ("sae-lens", ["relu", "topk", "gated", "matryoshka", "skip"]),
    "sparsify": ("sparsify", ["topk", "groupmax", "topk_transcoder", "topk_skip"]),
    "dictionary_learning": ("dictionary-learning", ["relu", "topk", "jumprelu", "gated", "batchtopk", "matryoshka"]),
}


def made(recipe: Recipe, x: torch.Tensor, norm: str) -> Dictionary:
    """A dictionary without a zero anywhere."""
    torch.manual_seed(len(norm))
    site = {"sites_in": ("ln2.3",), "sites_out": ("mlp_out.3",)} if isinstance(recipe, Transcoder) else {}
    spec = recipe.spec(D, **(site or {"sites_in": ("resid_post.3",)}), provenance={"model": "gpt2"})
    dictionary = recipe.assemble(spec, Affine.estimate(x, norm), Affine.estimate(x, norm)).eval()
    with torch.no_grad():
        for name, value in dictionary.state_dict().items():
            if value.is_floating_point() and not name.startswith("norm"):
                value.copy_(torch.rand_like(value) + 0.2 if "threshold" in name else torch.randn_like(value) * 0.5)
    return dictionary


@pytest.mark.parametrize("norm", ["none", "center"])
@pytest.mark.parametrize("format", TOOLS)
def test_the_tool_computes_what_we_do(format: str, norm: str, tmp_path: Path) -> None:
    peer, names = TOOLS[format]
    python = VENVS / peer / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment of {peer}: `make bench-dictionaries` builds it")
    x = torch.randn(30, D, generator=torch.Generator().manual_seed(5)) * 2 + 1
    dictionaries = {name: made(CODES[name], x, norm) for name in names}
    for name, dictionary in dictionaries.items():
        write(dictionary, tmp_path / name, format)
        save_file({"x": x}, tmp_path / name / "x.safetensors")
    tool = {"sae-lens": "saelens"}.get(peer, peer).replace("-", "_")
    script = HERE / "fixtures" / f"play_{tool}.py"
    folders = [str(tmp_path / name) for name in names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([str(python), str(script), *folders], check=True, capture_output=True, env=environment)
    for name, dictionary in dictionaries.items():
        played = load_file(tmp_path / name / "played.safetensors")
        with torch.no_grad():
            codes = dictionary.encode(x)
            expected = {"codes": codes.dense(), "reconstruction": dictionary.decode(codes, x)}
        for key, value in expected.items():
            worst = float((played[key] - value).abs().max() / value.abs().max())
            assert worst < 1e-5, f"{key} of {name} differ by {worst:.1e}"
        assert read(tmp_path / name, site="resid_post.3" if format == "sparsify" else None).spec.d_out == D
