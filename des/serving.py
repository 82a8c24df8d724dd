"""How an engine serves: scheduling within a step, KV blocks and what happens when they run out."""

from __future__ import annotations

from dataclasses import dataclass

from jaxsim._checks import require, require_non_negative, unknown

SCHEDULING = ("independent", "chunked", "decode-first", "prefill-first")
KV_RULES = ("reserve", "overflow", "grow")
PREEMPTION = ("recompute", "cached", "swap")


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Rules of every engine of a fleet. The defaults are those of the ``step`` model.

    Attributes:
        scheduling: what a step is made of.
            ``"independent"``: every running request takes part, a prefilling one with a chunk of its own
            (`Profile.chunk_tokens`).
            ``"chunked"``: a budget of tokens a step; each decoding request takes one of it, and prompts share what
            remains in order of arrival, cut into chunks (vLLM v1).
            ``"decode-first"``: the same, but prompts are not cut: one waits until what the decoding requests leave
            of the budget takes it whole, or nothing decodes. TPOT is steady, TTFT under pressure.
            ``"prefill-first"``: whole prompts up to the budget have the step to themselves while decoding pauses.
        max_num_batched_tokens: the budget, tokens of a step; for all but ``"independent"``.
        kv: how KV blocks are taken.
            ``"reserve"``: ceil((input + output)/block) at admission; nobody is ever preempted.
            ``"overflow"``: the same number, but a request that does not fit preempts the longest running ones, which
            restart from scratch (the reference fleet simulator's rule).
            ``"grow"``: the prompt's at admission, then token by token; when none is left the request that arrived
            last is preempted (vLLM v1).
        preemption: what ``"grow"`` does with a victim: ``"recompute"`` its prompt and what it had generated,
            ``"cached"``, the same with those of its blocks that are not yet reused as a prefix-cache hit, or
            ``"swap"`` to CPU memory and back.
        swap_s_per_token: seconds to move the KV of one token to or from CPU memory, added to the step of the move.
        prefix_cache_blocks: blocks of prompt prefixes that a replica keeps, least recently used out first; 0 for
            none. Needs a workload with block hashes.
    """

    scheduling: str = "independent"
    max_num_batched_tokens: int | None = None
    kv: str = "reserve"
    preemption: str = "recompute"
    swap_s_per_token: float = 0.0
    prefix_cache_blocks: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("scheduling", self.scheduling, SCHEDULING),
            ("kv", self.kv, KV_RULES),
            ("preemption", self.preemption, PREEMPTION),
        ):
            if value not in known:
                raise unknown(name, value, known)
        budget = self.max_num_batched_tokens
        if (budget is None) != (self.scheduling == "independent"):
            raise ValueError(
                f"max_num_batched_tokens must be given for scheduling other than 'independent', and only then, got "
                f"{budget!r} with {self.scheduling!r}; vLLM's default is 2048 or more"
            )
        if budget is not None:
            require(budget >= 1, "max_num_batched_tokens", budget, ">= 1")
        if self.preemption != "recompute" and self.kv != "grow":
            raise ValueError(f"preemption={self.preemption!r} is for kv='grow', got kv={self.kv!r}")
        require_non_negative("swap_s_per_token", self.swap_s_per_token)
        require(self.prefix_cache_blocks >= 0, "prefix_cache_blocks", self.prefix_cache_blocks, ">= 0")

    @property
    def budgeted(self) -> bool:
        """Whether prompts share a token budget."""
        return self.scheduling != "independent"

    def describe(self) -> str:
        """The rules in a phrase."""
        parts = [f"{self.scheduling} scheduling"]
        if self.max_num_batched_tokens is not None:
            parts.append(f"{self.max_num_batched_tokens:,} tokens a step")
        parts.append(f"KV blocks: {self.kv}" + (f" ({self.preemption})" if self.kv == "grow" else ""))
        if self.prefix_cache_blocks:
            parts.append(f"prefix cache of {self.prefix_cache_blocks:,} blocks a replica")
        return ", ".join(parts)
