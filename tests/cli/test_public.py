"""The package's front door: every public name is there, and `explain` is the function whatever was imported first."""

from __future__ import annotations

import inspect
import subprocess
import sys

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
