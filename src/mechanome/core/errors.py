"""The error taxonomy: every refusal says what is wrong, why, and what to do instead.

One class per kind of mistake, so that a caller can catch the kind. The message is assembled from three
parts and printed as ``what: why. Fix: fix``. The command line turns any of them into exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MechanomeError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: the thing that is wrong, named as the user named it.
        why: the reason, one clause.
        fix: what to do instead, one clause.
    """

    exit_code = 2

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        message = what if not why else f"{what}: {why}"
        super().__init__(f"{message.rstrip('.')}. Fix: {fix}" if fix else message)

    def __reduce__(self) -> tuple[type[MechanomeError], tuple[str, str, str]]:
        return type(self), (self.what, self.why, self.fix)


class BadInput(MechanomeError):
    """An argument, prompt or option that cannot be used."""


class BudgetTooSmall(MechanomeError):
    """The memory budget cannot hold even the smallest piece of the work."""


class CorruptFile(MechanomeError):
    """A file that is truncated, has the wrong hash or misses required content."""


class DownloadFailed(MechanomeError):
    """A download that did not finish, or cannot start without a network."""


class NotFinite(MechanomeError):
    """A result that holds NaN or infinity where a number is needed."""


class NotServed(MechanomeError):
    """Something this model, backend or mode cannot serve, with the nearest thing that can."""


class ShapeMismatch(MechanomeError):
    """A tensor whose shape does not fit where it is used."""


class TooFewRows(MechanomeError):
    """Not enough examples for the statistic that was asked for."""


class UnknownModel(MechanomeError):
    """A model id, folder or object that cannot be opened."""


class UnknownName(MechanomeError):
    """A name (task, method, study, span ...) that does not exist."""


class UnknownSite(MechanomeError):
    """A site string that does not parse or does not exist in this model."""


def nearest(name: str, valid: Iterable[str], n: int = 3) -> str:
    """The closest valid names, as a phrase for an error's fix.

    Args:
        name: what the user typed.
        valid: every accepted name.
        n: how many suggestions at most.

    Returns:
        ``"did you mean 'a', 'b'?"`` or, where nothing is close, the first valid names.
    """
    names = sorted(set(valid))
    close = difflib.get_close_matches(str(name), names, n=n, cutoff=0.5)
    if close:
        return "did you mean " + ", ".join(repr(c) for c in close) + "?"
    shown = ", ".join(names[:8])
    return f"valid names are {shown}" + (", ..." if len(names) > 8 else "")
