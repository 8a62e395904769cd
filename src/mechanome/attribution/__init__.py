"""What a part contributes: direct logit attribution, lenses, integrated gradients, ablations.

Exact patching sweeps and backward rules are the engine's (`mechanome.activation_patching`, `Model.grad`).
"""

from mechanome.attribution.direct import DirectAttribution, direct_logit_attribution
from mechanome.attribution.integrated_gradients import IntegratedGradients, integrated_gradients
from mechanome.attribution.lens import Lens, logit_lens
from mechanome.attribution.replacements import Mean, Resampled, mean_of, resample_from

__all__ = [
    "DirectAttribution",
    "IntegratedGradients",
    "Lens",
    "Mean",
    "Resampled",
    "direct_logit_attribution",
    "integrated_gradients",
    "logit_lens",
    "mean_of",
    "resample_from",
]
