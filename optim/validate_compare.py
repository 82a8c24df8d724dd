"""Measured latencies against what a profile predicts at the same load, each within a tolerance that has a reason.

A step law cannot be better than it was measured to be, so a profile is held to hold where step times within `STEP` of
it show what was measured. What such a difference does to a latency depends on the load: little to a TPOT in an idle
pool, much to a TTFT near saturation. So every prediction is made three times, with steps that much shorter and longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from jaxsim.fit.rescale import scaled
from jaxsim.observed import MEAN, Observed, Reading
from jaxsim.profiles import Profile
from optim.validate_predict import Judge, Key, Predicted

STEP = 0.10
STEP_REASON = "step times held out of measured sweeps are 9 % off in the worst of 40 (docs/accuracy-physics.md)"
OTHER = 0.25
OTHER_REASON = "tokenisation, HTTP and the scheduler's order are in a server's TTFT and percentiles and in no step law"
_JUDGED = ("tpot", "itl", "ttft")


class Part(Enum):
    """What a latency tells of. The values are the words."""

    DECODE = "step times"
    PROMPT = "prompts and waiting"
    TAIL = "tails"


@dataclass(frozen=True)
class Row:
    """One latency, seconds.

    Attributes:
        reading: as measured.
        low_s, high_s: its 95 % interval: the reading's own ends, or the scatter of windows of that length.
        model_s, simulated_s: predicted at the measured load; NaN where not.
        half_s: half the interval of the simulated figure; 0 where it is not simulated.
        least_s, most_s: what the tolerance allows; NaN where the figure is not judged.
        part: what it tells of; None where it is not judged.
    """

    reading: Reading
    low_s: float
    high_s: float
    model_s: float
    simulated_s: float
    half_s: float
    least_s: float
    most_s: float
    part: Part | None

    @property
    def key(self) -> Key:
        """Figure and statistic."""
        return self.reading.key

    @property
    def agrees(self) -> bool | None:
        """Whether the measured interval and what the tolerance allows have something in common; None: not judged."""
        if self.part is None:
            return None
        return self.low_s <= self.most_s + self.half_s and self.high_s >= self.least_s - self.half_s

    @property
    def ratio(self) -> float:
        """Measured over predicted, by the simulator where it was asked; 0 of an overload."""
        predicted = self.model_s if math.isnan(self.simulated_s) else self.simulated_s
        return self.reading.value_s / predicted if predicted > 0 else math.nan


@dataclass(frozen=True)
class Tolerances:
    """Relative: of step times, and of what no step law knows."""

    step: float = STEP
    other: float = OTHER


def compare(
    seen: Observed, profile: Profile, judge: Judge, model: Predicted | None, tolerances: Tolerances
) -> tuple[Predicted, tuple[Row, ...]]:
    """The profile's prediction, and every measured latency beside it.

    Args:
        seen: what was measured, at a steady load.
        profile: of the plan, or refitted.
        judge: predicts a profile's figures at that load: the simulator, or the model.
        model: the model's figures, to be shown too.
        tolerances: relative.
    """
    middle = judge(profile)
    factors = (1.0 / (1.0 + tolerances.step), 1.0 + tolerances.step)
    quicker, slower = (judge(scaled(profile, decode=factor, prompt=factor)) for factor in factors)
    return middle, tuple(_rows(seen, middle, (quicker, slower), model, tolerances.other))


def _rows(
    seen: Observed, middle: Predicted, ends: tuple[Predicted, Predicted], model: Predicted | None, other: float
) -> Iterator[Row]:
    of_simulator = middle.requests > 0
    for reading in seen.readings:
        key = reading.key
        value, figure = middle.value(key), middle.figures.get(key)
        part = part_of(seen, key)
        if math.isnan(value):
            part = None
        least, most = (end.value(key) for end in ends)
        if part in (Part.PROMPT, Part.TAIL) and not math.isinf(value):
            least, most = min(least, value * (1.0 - other)), max(most, value * (1.0 + other))
        half = 0.0 if figure is None or middle.overloaded else figure.half_s
        low, high = with_scatter(reading, middle)
        yield Row(
            reading=reading,
            low_s=low,
            high_s=high,
            model_s=math.nan if model is None else model.value(key),
            simulated_s=value if of_simulator else math.nan,
            half_s=half,
            least_s=math.nan if part is None else least,
            most_s=math.nan if part is None else most,
            part=part,
        )


def part_of(seen: Observed, key: Key) -> Part | None:
    """What a latency tells of; E2E is the sum of others, and gaps say nothing that the TPOT of requests does not."""
    figure, statistic = key
    if figure not in _JUDGED or (figure == "itl" and (statistic != MEAN or seen.reading("tpot", MEAN) is not None)):
        return None
    means = seen.reading(figure, MEAN) is not None
    if statistic == MEAN or (statistic == "p50" and not means):
        return Part.PROMPT if figure == "ttft" else Part.DECODE
    return Part.TAIL


def with_scatter(reading: Reading, predicted: Predicted) -> tuple[float, float]:
    """The interval of a measured figure: edges of buckets as they are, numbers with the scatter of such windows.

    The scatter is relative, that of the predicted figure; in overload and without a simulation it is not known, and
    the reading's own ends are all there is.
    """
    figure = predicted.figures.get(reading.key)
    low, high = reading.low_s, reading.high_s
    if reading.bucket or figure is None or predicted.overloaded or not math.isfinite(figure.window_half_s):
        return low, high
    half = reading.value_s * figure.window_half_s / figure.value_s
    return max(min(low, reading.value_s - half), 0.0), max(high, reading.value_s + half)


def of_part(rows: tuple[Row, ...], part: Part, *, off: bool = False) -> list[Row]:
    """The rows that tell of a part; `off` keeps those that disagree."""
    return [row for row in rows if row.part is part and not (off and row.agrees)]


def decisive(rows: tuple[Row, ...], part: Part) -> Row | None:
    """The row that a factor is fitted to; None where nothing tells of the part."""
    found = of_part(rows, part)
    return next((row for row in found if row.key[1] == MEAN), found[0] if found else None)
