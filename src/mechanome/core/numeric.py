"""The door through which numbers enter a statistic: any array, tensor or list, as finite float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mechanome.core.errors import BadInput, NotFinite


def numbers(values: Any, what: str = "values") -> np.ndarray:
    """Any array, tensor or list as finite float64; NaN and infinity are refused.

    Raises:
        BadInput: not numbers.
        NotFinite: NaN or infinity inside; the message names the first one's place.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        data = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BadInput(what, f"not an array of numbers ({error})", "pass numbers of one shape") from error
    if data.ndim == 0:
        raise BadInput(what, "a single number has no rows", "pass a vector")
    broken = np.argwhere(~np.isfinite(data))
    if len(broken):
        place = ", ".join(map(str, broken[0]))
        raise NotFinite(
            what, f"{len(broken)} of {data.size} are NaN or infinite, first at [{place}]", "drop or mend it"
        )
    return data
