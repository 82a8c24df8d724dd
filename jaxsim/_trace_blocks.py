"""Prefix blocks of a trace: hashes of consecutive blocks of each prompt, as in the Mooncake traces.

Equal hashes mean equal prefixes, so repeated ones are what a prefix cache could have served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Integer

BLOCK_TOKENS = (512, 16)
"""Tokens of a block in the Mooncake traces and in the Alibaba traces of the same layout."""


@dataclass(frozen=True)
class PrefixBlocks:
    """Number of block hashes of each row, and of different ones in the file."""

    counts: Integer[np.ndarray, " rows"]
    num_different: int

    def check(
        self, input_tokens: Int[np.ndarray, " rows"], place: Callable[[int], str]
    ) -> tuple[float | None, list[str]]:
        """Share of blocks seen before in the file, and notes on it and on rows whose count is wrong."""
        total = int(self.counts.sum())
        if not total:
            return None, []
        wrong = {size: np.flatnonzero(self.counts != -(-input_tokens // size)) for size in BLOCK_TOKENS}
        size = min(BLOCK_TOKENS, key=lambda block: len(wrong[block]))
        share = (total - self.num_different) / total
        notes = [f"prefix blocks of {size} tokens: {share:.1%} were seen before (infinite prefix cache)"]
        if len(wrong[size]):
            at = int(wrong[size][0])
            notes.append(
                f"warning: in {len(wrong[size])} of {len(input_tokens)} rows the number of hash_ids is not "
                f"ceil(input tokens / {size}); first: {place(at)}, {self.counts[at]} hash ids for "
                f"{input_tokens[at]} tokens, which fill {-(-int(input_tokens[at]) // size)} blocks of {size}"
            )
        return share, notes
