"""What holds a plan where it is: what one replica less in a pool would break."""

from __future__ import annotations

from enum import Enum

import numpy as np

from optim.cases import Case, margins
from optim.sizing import CONSTRAINTS


class Binding(Enum):
    """What one replica less would break. The values are the sentences."""

    TTFT_P99 = "P99 TTFT would exceed its objective"
    TPOT_P99 = "P99 TPOT would exceed its objective"
    THROUGHPUT = "the load would exceed the capacity at full batch"
    UTILIZATION_CAP = "utilisation would exceed the reference model's cap of 0.85"
    REFERENCE_MINIMUM = "the reference model keeps one replica more than the load"
    POWER = "more power would be drawn, or the budget on it exceeded"
    ONE_REPLICA = "one replica is the least there is"


def binding(
    case: Case, replicas: np.ndarray, upper: np.ndarray, *, model: str, powered: bool = False
) -> tuple[Binding, ...]:
    """What keeps each pool from having one replica less; where power counts that may be power alone."""
    fewer = np.maximum(replicas - 1.0, 0.5)
    found = margins(case, upper[None], fewer[None], model=model)
    return tuple(
        _binding(float(number), found.excess[0, p], float(found.utilization[0, p]), model, powered)
        for p, number in enumerate(replicas)
    )


def _binding(replicas: float, over: np.ndarray, utilization: float, model: str, powered: bool) -> Binding:
    if replicas <= 1.0:
        return Binding.ONE_REPLICA
    if powered and utilization < 1.0 and over.max() <= 0:
        return Binding.POWER
    if utilization >= 1.0 or over.max() <= 0:
        return Binding.THROUGHPUT
    return Binding[CONSTRAINTS[model][int(over.argmax())].upper()]
