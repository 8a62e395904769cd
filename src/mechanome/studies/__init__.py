"""Studies: one file per paper, its claims with thresholds fixed beforehand, measured and judged.

from mechanome.studies import STUDIES, run

list(STUDIES)                                   # names
run("contribution-weights", "smoke").found      # seconds; never judged

Names are imported when first used, so that the command line need not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechanome.studies.context import Context
    from mechanome.studies.plan import Plan, resolve
    from mechanome.studies.registry import STUDIES, Registry
    from mechanome.studies.result import Reported, StudyResult, read_record
    from mechanome.studies.running import Outcome, run
    from mechanome.studies.study import Effect, Measured, Quantity, Scale, Study

__all__ = [
    "STUDIES",
    "Context",
    "Effect",
    "Measured",
    "Outcome",
    "Plan",
    "Quantity",
    "Registry",
    "Reported",
    "Scale",
    "Study",
    "StudyResult",
    "read_record",
    "resolve",
    "run",
]

_HOMES = {
    "context": ("Context",),
    "plan": ("Plan", "resolve"),
    "registry": ("STUDIES", "Registry"),
    "result": ("Reported", "StudyResult", "read_record"),
    "running": ("Outcome", "run"),
    "study": ("Effect", "Measured", "Quantity", "Scale", "Study"),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"mechanome.studies.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
