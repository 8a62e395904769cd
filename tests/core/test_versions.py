import getpass
import json
import platform
from pathlib import Path

import torch

import mechanome.version
from mechanome.core import machine, versions


def test_versions_of_what_results_depend_on():
    found = versions()
    assert found["mechanome"] == mechanome.version.__version__
    assert found["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert {"python", "transformers", "numpy"} <= found.keys()
    assert versions(["no-such-package"]).keys() == {"mechanome", "python"}


def test_machine_is_described_without_identifying_it():
    found = machine()
    assert found["cores"] >= 1
    assert 0.1 < found["memory_gib"] < 1e5
    assert found["cpu"]
    text = json.dumps(found)
    assert all(
        secret not in text for secret in (platform.node(), str(Path.home()), getpass.getuser()) if len(secret) > 3
    )
