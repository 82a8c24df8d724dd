"""Met, missed, or a coin flip: what an interval says of an objective."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np
from scipy.special import ndtri

from jaxsim._checks import require


class Verdict(Enum):
    """What an interval says of its objective. The values are the words."""

    MET = "met"
    COIN_FLIP = "a coin flip"
    MISSED = "missed"


def verdict_of(low: float, high: float, limit: float) -> Verdict:
    """Of a figure that must not exceed `limit` and lies in [low, high]; an interval that crosses is a coin flip."""
    if high <= limit:
        return Verdict.MET
    return Verdict.MISSED if low > limit else Verdict.COIN_FLIP


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of several; met where there is none."""
    order = list(Verdict)
    return max(verdicts, key=order.index, default=Verdict.MET)


def wilson(share: float, number: float, confidence: float = 0.95) -> tuple[float, float]:
    r"""Wilson's interval of a share that was seen in `number` independent trials (E. B. Wilson, JASA 22, 1927).

    $$\frac{p + z^2/2n \pm z \sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}$$

    Args:
        share: seen, in [0, 1].
        number: of trials, > 0; real where they are weighted.
        confidence: of the interval, in (0, 1).
    """
    require(0.0 <= share <= 1.0, "share", share, "between 0 and 1")
    require(number > 0, "number", number, "> 0")
    require(0.0 < confidence < 1.0, "confidence", confidence, "between 0 and 1")
    z2 = float(ndtri(0.5 + 0.5 * confidence)) ** 2
    middle = share + 0.5 * z2 / number
    half = np.sqrt(z2 * (share * (1.0 - share) / number + 0.25 * z2 / number**2))
    low, high = (middle - half) / (1.0 + z2 / number), (middle + half) / (1.0 + z2 / number)
    return (0.0 if share == 0.0 else float(low)), (1.0 if share == 1.0 else float(high))
