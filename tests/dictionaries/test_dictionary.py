"""What every dictionary does: encode, decode, atoms, files, coordinates; and its refusals."""

import dense_reference as dense
import pytest
import torch

from mechanome.core.errors import BadInput, CorruptFile, NotFinite, ShapeMismatch, UnknownSite
from mechanome.dictionaries import (
    ARCHITECTURES,
    Affine,
    BatchTopK,
    Crosscoder,
    Dictionary,
    Gated,
    Interacting,
    JumpReLU,
    LinearEncoder,
    Matryoshka,
    MultiSite,
    PolySAE,
    ReLU,
    Skip,
    SkipTranscoder,
    SparseCodes,
    Thresholded,
    TopK,
    Transcoder,
    dictionary,
    fold,
    recipe_of,
)
from mechanome.engine import Basis

D, F = 10, 40
RECIPES = {
    "relu": ReLU(F),
    "topk": TopK(F, k=4),
    "batchtopk": BatchTopK(F, k=4),
    "jumprelu": JumpReLU(F),
    "gated": Gated(F),
    "matryoshka": Matryoshka(F, k=4),
    "poly": PolySAE(F, k=4, ranks=(8, 5, 3)),
    "transcoder": Transcoder(TopK(F, k=4)),
    "skip_transcoder": SkipTranscoder(JumpReLU(F)),
    "crosscoder": Crosscoder(BatchTopK(F, k=4)),
}


def rows(n=25, d=D, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def built(name, seed=0):
    """A dictionary with every weight off its start, and a norm that is not the identity."""
    torch.manual_seed(seed)
    recipe = RECIPES[name]
    where = {"sites_in": ("a",)}
    if name.endswith("transcoder"):
        where["sites_out"] = ("b",)
    if name == "crosscoder":
        where = {"sites_in": ("a", "b"), "site_widths": (7, 3)}
    spec = recipe.spec(D, 6 if name.endswith("transcoder") else D, **where)
    norm = Affine.estimate(rows(100), "center")
    norm_out = Affine.estimate(rows(100, spec.d_out, 1), "scale") if name.endswith("transcoder") else None
    model = recipe.assemble(spec, norm, norm_out)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        if name in ("batchtopk", "matryoshka", "crosscoder"):
            model.selector.threshold.fill_(1.5)
    return model.eval()


def test_every_architecture_is_tried_here():
    here = {recipe.architecture for recipe in RECIPES.values()}
    assert here <= ARCHITECTURES.keys()
    assert len(here) == 10


@pytest.mark.parametrize("name", RECIPES)
def test_files_bring_everything_back(tmp_path, name):
    model, x = built(name), rows()
    model.save(tmp_path / "kept")
    again = Dictionary.load(tmp_path / "kept")
    assert again.spec == model.spec
    assert recipe_of(again.spec) == RECIPES[name]
    assert type(again) is type(model)
    assert not again.training
    assert torch.equal(again(x), model(x))
    assert torch.equal(again.encode(x).dense(), model.encode(x).dense())
    with pytest.raises(BadInput, match="exists already"):
        model.save(tmp_path / "kept")


@pytest.mark.parametrize("name", RECIPES)
def test_shapes_chunks_and_leading_axes(monkeypatch, name):
    model, x = built(name), rows(24)
    whole = model(x)
    assert whole.shape == (24, model.spec.d_out)
    assert torch.equal(model(x.view(2, 3, 4, D)), whole.view(2, 3, 4, -1))
    monkeypatch.setattr(dictionary, "CHUNK", F * 5)
    torch.testing.assert_close(model(x), whole)
    assert model.atoms().shape == (F, model.spec.d_out)
    assert model.encode(x[:0]).rows == 0


@pytest.mark.parametrize("name", ["relu", "topk", "jumprelu", "gated", "poly"])
def test_codes_and_reconstructions_are_those_of_the_formula(name):
    model, x = built(name), rows()
    normed = (x - model.norm.shift) * model.norm.scale
    pre = (normed - model.b_dec) @ model.W_enc.T + model.b_enc
    z = dense.values(model, {"poly": "topk", "gated": "gate"}.get(name, name), pre)
    torch.testing.assert_close(model.encode(x).dense(), z)
    expected = dense.expand(model.decoder, z) / model.norm.scale + model.norm.shift
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model.pre(x, torch.tensor([3, 1])), pre[:, [3, 1]])


def test_batch_topk_encodes_a_row_alone_by_its_threshold():
    model, x = built("batchtopk"), rows()
    pre = model.pre(x)
    torch.testing.assert_close(model.encode(x).dense(), pre * (pre > 1.5))
    torch.testing.assert_close(model(x[:1]), model(x)[:1])


def test_a_skip_connection_reads_the_input():
    model, x = built("skip_transcoder"), rows()
    codes = model.encode(x)
    silent = SparseCodes.of_dense(torch.zeros(len(x), F))
    expected = model.norm_out.invert(model.b_dec + model.norm(x) @ model.W_skip.T)
    torch.testing.assert_close(model.decode(silent, x), expected)
    with pytest.raises(BadInput, match="reads the input"):
        model.decode(codes)


@pytest.mark.parametrize("name", ["topk", "matryoshka", "transcoder", "crosscoder"])
def test_an_atom_is_what_a_latent_adds(name):
    model = built(name)
    one = SparseCodes.of_dense(torch.eye(F))
    none = SparseCodes.of_dense(torch.zeros(1, F))
    torch.testing.assert_close(model.decode(one) - model.decode(none), model.atoms(), rtol=1e-4, atol=1e-4)


def test_a_crosscoder_has_atoms_at_each_site():
    model = built("crosscoder")
    assert torch.equal(torch.cat([model.atoms("a"), model.atoms("b")], dim=1), model.atoms())
    assert model.atoms("b").shape == (F, 3)
    with pytest.raises(UnknownSite):
        model.atoms("c")


def test_capabilities():
    able = {
        kind.__name__: {name for name in RECIPES if isinstance(built(name), kind)}
        for kind in (LinearEncoder, Thresholded, MultiSite, Skip, Interacting)
    }
    assert able == {
        "LinearEncoder": set(RECIPES),
        "Thresholded": {"batchtopk", "jumprelu", "matryoshka", "skip_transcoder", "crosscoder"},
        "MultiSite": {"crosscoder"},
        "Skip": {"skip_transcoder"},
        "Interacting": {"poly"},
    }


def test_latents_as_coordinates():
    model, x = built("topk"), rows()
    whole = model.basis()
    assert isinstance(whole, Basis)
    torch.testing.assert_close(whole.decode(whole.encode(x)), model(x), rtol=1e-4, atol=1e-4)
    few = model.basis([5, 2])
    assert torch.equal(few.encode(x), model.encode(x).dense()[:, [5, 2]])
    change = few.decode(torch.tensor([[1.0, 2.0]])) - few.decode(torch.zeros(1, 2))
    torch.testing.assert_close(change, model.atoms()[5:6] + 2 * model.atoms()[2:3], rtol=1e-4, atol=1e-4)
    for wrong in ([F], [1, 1], []):
        with pytest.raises(BadInput, match="latents"):
            model.basis(wrong)
    with pytest.raises(BadInput, match="elsewhere"):
        built("transcoder").basis()


@pytest.mark.parametrize("kind", ["center", "whiten"])
@pytest.mark.parametrize("name", RECIPES)
def test_folding_moves_the_norm_into_the_weights(name, kind):
    model, x = built(name), rows(60)
    model.set_norms(Affine.estimate(rows(100), kind), Affine.estimate(rows(100, model.spec.d_out, 1), kind))
    before = model(x)
    folded = fold(model, x)
    assert (folded.norm.kind, folded.norm_out.kind) == ("none", "none")
    assert torch.equal(model(x), before)
    torch.testing.assert_close(folded(x), before, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(folded.encode(x).dense(), model.encode(x).dense(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(folded.atoms(), model.atoms(), rtol=1e-3, atol=1e-3)


def test_folding_is_proved(monkeypatch):
    model, x = built("topk"), rows()
    monkeypatch.setattr(type(model.decoder), "fold", lambda self, norm: None)
    with pytest.raises(BadInput, match="differ by"):
        fold(model, x)


def test_refusals():
    model, x = built("topk"), rows()
    with pytest.raises(ShapeMismatch, match=r"width 4, the dictionary reads 10.*of a"):
        model.encode(x[:, :4])
    x[7, 3] = float("inf")
    with pytest.raises(NotFinite, match="row 7"):
        model.encode(x)
    with pytest.raises(ShapeMismatch, match="41 latents"):
        model.decode(SparseCodes.of_dense(torch.zeros(1, 41)))
    with pytest.raises(AttributeError, match="W_dec"):
        built("poly").W_dec  # noqa: B018
    for build in (
        lambda: TopK(8, k=9),
        lambda: BatchTopK(8, k=0),
        lambda: TopK(8, k=4, k_start=2),
        lambda: ReLU(8, l1=-1.0),
        lambda: JumpReLU(8, l0=9),
        lambda: Matryoshka(8, k=2, groups=(3, 3)),
        lambda: PolySAE(8, k=2, ranks=(9, 2, 2)),
        lambda: PolySAE(8, k=2, ranks=(4, 5, 2)),
        lambda: PolySAE(8, k=2, ranks=(4, 2)),
        lambda: PolySAE(8, k=2, ranks=(4, 2, 2), order=2),
        lambda: PolySAE(8, k=2, ranks=(4, 3, 2), shared=False),
        lambda: Transcoder(Transcoder(TopK(8, k=2))),
    ):
        with pytest.raises(BadInput):
            build()
    with pytest.raises(ShapeMismatch, match="Transcoder"):
        TopK(8, k=2).build(4, 5)


def test_damaged_folders(tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        Dictionary.load(tmp_path / "nowhere")
    built("topk").save(tmp_path / "d")
    weights = tmp_path / "d" / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-40])
    with pytest.raises(CorruptFile):
        Dictionary.load(tmp_path / "d")
    weights.write_bytes(content)
    spec = tmp_path / "d" / "mechanome.json"
    spec.write_text(spec.read_text().replace('"width": 40', '"width": 41'))
    with pytest.raises(ShapeMismatch):
        Dictionary.load(tmp_path / "d")
