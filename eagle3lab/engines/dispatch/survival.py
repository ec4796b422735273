"""How long answers are, from finished and unfinished ones: Kaplan-Meier, with a log-normal behind it.

The share of answers longer than a length follows from the hazard of every bin, ended / at risk. Where little or
nothing was seen (the tail beyond the longest answer so far; a set that has hardly begun) a log-normal fitted to the
same censored data takes over: it counts as `SHRINK` answers a bin. A set's fit starts from that of the other sets,
which count as `POOL` answers together. With many answers both vanish and plain Kaplan-Meier is left.

B: bins, E: edges (B + 1), G: grid points of the fit, R: draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, log, sqrt

import numpy as np

from eagle3lab.engines.dispatch.lengths import Exposure

SHRINK, POOL = 3.0, 5.0
_Z = np.linspace(-9.0, 9.0, 18001)
_TAIL = np.array([erfc(z / sqrt(2)) / 2 for z in _Z])  # share of a normal variable above z
LEAST, MOST = np.array([log(2), 0.1]), np.array([log(60000), 3.5])  # (mu, sigma) of log lengths
COARSE, FINE, WIDTHS = 40, 17, 3.5  # points a side of the two grids; half side of the second in standard deviations


def kaplan_meier(seen: Exposure) -> np.ndarray:
    """Hazard of every bin [B]: ended / at risk, 0 where nothing was at risk."""
    return np.divide(seen.ended_B, seen.at_risk_B, out=np.zeros(len(seen.ended_B)), where=seen.at_risk_B > 0)


def survival(hazard_B: np.ndarray) -> np.ndarray:
    """Share of answers longer than every edge [..., E], from hazards [..., B]."""
    longer_B = np.cumprod(1 - hazard_B, axis=-1)
    return np.concatenate([np.ones((*longer_B.shape[:-1], 1)), longer_B], axis=-1)


def lognormal_hazards(edges_E: np.ndarray, mu_G: np.ndarray, sigma_G: np.ndarray) -> np.ndarray:
    """Hazard of every bin [G, B] for log-normal lengths, each rounded up to whole tokens."""
    with np.errstate(divide="ignore"):
        log_E = np.log(edges_E)
    longer_GE = np.interp((log_E - mu_G[:, None]) / sigma_G[:, None], _Z, _TAIL)
    longer_GE[:, 0] = 1.0
    return np.clip(1 - longer_GE[:, 1:] / longer_GE[:, :-1], 1e-9, 1 - 1e-9)


@dataclass(frozen=True)
class Fit:
    """Log-normals that may be behind a set, and the weight of each: `hazard_GB`, `weight_G`."""

    hazard_GB: np.ndarray
    weight_G: np.ndarray

    def mean(self) -> np.ndarray:
        """Hazards [B] of the mixture."""
        longer_E = self.weight_G @ survival(self.hazard_GB)
        return 1 - longer_E[1:] / np.maximum(longer_E[:-1], 1e-300)

    def draw(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Hazards [n, B] of log-normals drawn by their weight."""
        return self.hazard_GB[generator.choice(len(self.weight_G), n, p=self.weight_G)]


def fit(sets: list[Exposure]) -> list[Fit]:
    """The log-normals that fit each set's data, with at most `POOL` answers' worth of what the other sets say.

    By likelihood on a coarse grid, then on a fine one around its centre.
    """
    edges_E = sets[0].edges_E
    coarse_G2 = _grid(LEAST, MOST, COARSE)
    hazard_GB = lognormal_hazards(edges_E, *coarse_G2.T)
    answers = [float(seen.at_risk_B[0]) for seen in sets]
    fits = []
    for own, own_answers in zip(sets, answers, strict=True):
        others = [seen for seen in sets if seen is not own]
        share = min(1.0, POOL / max(sum(answers) - own_answers, 1.0))
        evidence = Exposure(
            edges_E,
            own.ended_B + share * sum(seen.ended_B for seen in others),
            own.at_risk_B + share * sum(seen.at_risk_B for seen in others),
        )
        weight_G = _weights(evidence, hazard_GB)
        centre = weight_G @ coarse_G2
        reach = np.maximum(WIDTHS * np.sqrt(weight_G @ (coarse_G2 - centre) ** 2), (MOST - LEAST) / COARSE)
        fine_G2 = _grid(np.maximum(centre - reach, LEAST), np.minimum(centre + reach, MOST), FINE)
        fine_GB = lognormal_hazards(edges_E, *fine_G2.T)
        fits.append(Fit(fine_GB, _weights(evidence, fine_GB)))
    return fits


def _grid(low: np.ndarray, high: np.ndarray, points: int) -> np.ndarray:
    """(mu, sigma) pairs [points^2, 2] between two corners."""
    sides = (np.linspace(a, b, points) for a, b in zip(low, high, strict=True))
    return np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)


def _weights(seen: Exposure, hazard_GB: np.ndarray) -> np.ndarray:
    """Likelihood [G] of what was seen, scaled to sum 1."""
    score_G = np.log(hazard_GB) @ seen.ended_B + np.log1p(-hazard_GB) @ (seen.at_risk_B - seen.ended_B)
    weight_G = np.exp(score_G - score_G.max())
    return weight_G / weight_G.sum()


def shrunk(seen: Exposure, behind_B: np.ndarray, weight: float = SHRINK) -> np.ndarray:
    """Hazards [B]: Kaplan-Meier with `weight` answers a bin that end as the hazards `behind_B` say."""
    return (seen.ended_B + weight * behind_B) / (seen.at_risk_B + weight)


def draw_hazards(seen: Exposure, fitted: Fit, n: int, generator: np.random.Generator) -> np.ndarray:
    """Hazards [n, B] as uncertain as the data leave them: beta draws around `shrunk`, each with its own fit."""
    behind_RB = fitted.draw(n, generator)
    ended_RB = seen.ended_B + SHRINK * behind_RB
    return generator.beta(ended_RB, np.maximum(seen.at_risk_B + SHRINK - ended_RB, 1e-9))


def tokens_ahead(edges_E: np.ndarray, hazard_B: np.ndarray, cap: int) -> np.ndarray:
    """Expected tokens beyond every edge [..., E] of an answer that got there, cut at `cap` (an edge).

    The first is the mean length. Within a bin of w tokens an answer that ends does so at any of them: w - h (w - 1)/2
    tokens of it are written on average.
    """
    width_B = np.diff(edges_E)
    ahead = np.zeros((*hazard_B.shape[:-1], len(edges_E)))
    last = int(np.searchsorted(edges_E, cap))
    for b in range(last - 1, -1, -1):
        h = hazard_B[..., b]
        ahead[..., b] = width_B[b] - h * (width_B[b] - 1) / 2 + (1 - h) * ahead[..., b + 1]
    return ahead
