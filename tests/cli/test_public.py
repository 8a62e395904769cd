"""The package's front door: every public name is there, and `explain` is the function whatever was imported first."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import mechanome as mn


def test_every_public_name_is_there() -> None:
    assert sorted(mn.__all__) == sorted(set(mn.__all__)) and set(mn.__all__) <= set(dir(mn))
    for name in mn.__all__:
        assert getattr(mn, name) is not None
    assert not hasattr(mn, "no_such_name")


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, mechanome; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_explain_is_callable_and_a_package() -> None:
    import mechanome.explain.pipeline as pipeline

    assert callable(mn.explain) and mn.explain.Explanation is mn.Explanation
    assert inspect.signature(mn.explain) == inspect.signature(pipeline.explain)
    assert list(inspect.signature(mn.explain).parameters)[:2] == ["prompt", "model"]


PACKAGES = ["mechanome", "mechanome.core", "mechanome.engine", "mechanome.engine.registry", "mechanome.explain"]


@pytest.mark.parametrize("name", [*PACKAGES, "mechanome.studies", "mechanome.tasks"])
def test_every_name_of_a_package_is_found_when_it_is_used(name: str) -> None:
    package = importlib.import_module(name)
    assert set(package.__all__) <= {*package.homes, "__version__"} and set(package.homes) <= set(dir(package))
    for public in package.__all__:
        assert getattr(package, public) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def test_a_module_does_not_hide_what_it_is_named_after() -> None:
    code = (
        "import mechanome.core.versions, sys\n"
        "light = 'torch' not in sys.modules\n"
        "import mechanome.core.fit, mechanome.engine.load, mechanome.explain.pipeline\n"
        "from mechanome.core import fit, versions\n"
        "from mechanome.engine import load\n"
        "import mechanome\n"
        "print(light, callable(fit), callable(versions), callable(load), callable(mechanome.explain))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 5
