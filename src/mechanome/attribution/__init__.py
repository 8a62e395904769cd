"""What a part contributes: direct logit attribution, lenses, integrated gradients, ablations.

Exact patching sweeps and backward rules are the engine's (`mechanome.activation_patching`, `Model.grad`).
"""

from mechanome.attribution.direct import DirectAttribution, direct_logit_attribution
from mechanome.attribution.fit_lens import fit_tuned_lens
from mechanome.attribution.integrated_gradients import IntegratedGradients, integrated_gradients
from mechanome.attribution.lens import Lens, logit_lens
from mechanome.attribution.replacements import Mean, Resampled, mean_of, resample_from
from mechanome.attribution.tuned_lens import Quality, Translator, TunedLens

__all__ = [
    "DirectAttribution",
    "IntegratedGradients",
    "Lens",
    "Mean",
    "Quality",
    "Resampled",
    "Translator",
    "TunedLens",
    "direct_logit_attribution",
    "fit_tuned_lens",
    "integrated_gradients",
    "logit_lens",
    "mean_of",
    "resample_from",
]
