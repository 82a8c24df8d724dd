"""Drawing rows of a workload by weight, compiled."""

from __future__ import annotations

from des._jit import entry


@entry
def invert(cumulative, guide, uniform, row):
    """Write the first row whose cumulative weight exceeds each of `uniform`, numbers in [0, 1).

    `guide[g]` is the answer for ``g / guide.size``, where the search starts; it then takes about one step.
    """
    last = cumulative.size - 1
    for i in range(uniform.size):
        u = uniform[i]
        j = guide[int(u * guide.size)]
        while j < last and cumulative[j] <= u:
            j += 1
        row[i] = j
