"""Prefix blocks of a trace: hashes of consecutive blocks of each prompt, as in the Mooncake traces.

Equal hashes mean equal prefixes, so repeated ones are what a prefix cache could have served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int, Integer

from jaxsim.workload import PrefixBlocks

BLOCK_TOKENS = (512, 16)
"""Tokens of a block in the Mooncake traces and in the Alibaba traces of the same layout."""


@dataclass(frozen=True)
class BlockHashes:
    """Block hashes of a file: how many each row has, and all of them, row after row, as numbers from 0."""

    counts: Integer[np.ndarray, " rows"]
    ids: Integer[np.ndarray, " hashes"]

    @classmethod
    def of(cls, counts: Any, hashes: Any) -> BlockHashes:
        """From the number of each row and the hashes themselves, row after row."""
        ids = np.unique(np.asarray(hashes), return_inverse=True)[1]
        return cls(np.asarray(counts, dtype=np.int64), ids.astype(np.int32))

    def check(
        self, input_tokens: Int[np.ndarray, " rows"], place: Callable[[int], str]
    ) -> tuple[PrefixBlocks | None, list[str]]:
        """The blocks with their size, and notes on the share seen before and on rows whose count is wrong."""
        if not len(self.ids):
            return None, []
        wrong = {size: np.flatnonzero(self.counts != -(-input_tokens // size)) for size in BLOCK_TOKENS}
        size = min(BLOCK_TOKENS, key=lambda block: len(wrong[block]))
        blocks = PrefixBlocks(self.ids, np.concatenate([[0], np.cumsum(self.counts)]), size)
        notes = [f"prefix blocks of {size} tokens: {blocks.seen_before:.1%} were seen before (infinite prefix cache)"]
        if len(wrong[size]):
            at = int(wrong[size][0])
            notes.append(
                f"warning: in {len(wrong[size])} of {len(input_tokens)} rows the number of hash_ids is not "
                f"ceil(input tokens / {size}); first: {place(at)}, {self.counts[at]} hash ids for "
                f"{input_tokens[at]} tokens, which fill {-(-int(input_tokens[at]) // size)} blocks of {size}"
            )
        return blocks, notes
