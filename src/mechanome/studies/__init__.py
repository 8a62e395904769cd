"""Studies: one file per paper, its claims with thresholds fixed beforehand, measured and judged.

from mechanome.studies import STUDIES, run

list(STUDIES)                                   # names
run("contribution-weights", "smoke").found      # seconds; never judged

Names are imported when first used, so that the command line need not wait for them.
"""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

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

offer(__name__)
