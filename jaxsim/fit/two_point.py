"""The law through two measured points, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxsim._checks import invalid, is_concrete, require, require_positive
from jaxsim.physics import StepLaw


def two_point(n1: Any, t1: Any, n2: Any, t2: Any, *, mean_context: Any = None) -> StepLaw:
    r"""The decode law through two batches: $t = W + H n$ exactly, $H = (t_2 - t_1) / (n_2 - n_1)$.

    Args:
        n1, t1: sequences in the first batch, and its step time or TPOT in seconds.
        n2, t2: of the second batch.
        mean_context: tokens that a sequence held in both, > 0. H is then all `per_token_s`; left out, it is all
            `per_sequence_s`. Two points cannot tell which, and the law holds at that context only.

    Broadcasts; differentiable in every argument. Prefill is not fitted.

    Raises:
        ValueError: two equal batches, or points through which no law goes: a step that takes no more time with
            more sequences, or none with no sequence.
    """
    for name, value in (("n1", n1), ("t1", t1), ("n2", n2), ("t2", t2)):
        require_positive(name, value)
    if is_concrete(n1, n2) and np.any(np.asarray(n1) == np.asarray(n2)):
        raise invalid("n2", n2, f"another batch than n1 ({n1})")
    slope = (t2 - t1) / (n2 - n1)
    base = t1 - slope * n1
    require(slope >= 0.0, "t2", t2, f"no less than t1 ({t1}) for the larger batch", "a larger batch takes no less time")
    require(base > 0.0, "t2", t2, "such that a step with no sequence takes time", f"base_s would be {base}")
    nothing = 0.0 * slope
    if mean_context is None:
        return StepLaw(base, slope, nothing, nothing, nothing, nothing)
    require_positive("mean_context", mean_context)
    return StepLaw(base, nothing, slope / mean_context, nothing, nothing, nothing)
