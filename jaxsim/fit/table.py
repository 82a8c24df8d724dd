"""Measured steps: one row a step, what its batch held and how long it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsim._checks import invalid, require, require_positive
from jaxsim.physics import StepLaw, held_work, prompt_work, step_base_s

Column = Float[np.ndarray, " rows"]

LEAST_PADDED = 64


class Rows(NamedTuple):
    """What the fit computes with: columns of one length, of floats. A row of weight 0 does not count.

    `num_active` sequences, those with a piece of prompt included, hold `mean_context` tokens each;
    `prompt_tokens` of them are computed in the step, and `token_contexts` is the sum over the pieces of prompt of
    their tokens times the context that each ends at.
    """

    num_active: Any
    mean_context: Any
    prompt_tokens: Any
    token_contexts: Any
    time_s: Any
    weight: Any


def step_seconds(law: StepLaw, rows: Rows) -> Any:
    """Time of each step by the law."""
    held = rows.num_active * held_work(law, rows.mean_context)
    return step_base_s(law) + held + prompt_work(law, rows.prompt_tokens, rows.token_contexts)


@dataclass(frozen=True)
class StepTable:
    """Measured steps, checked. Make one with `of` or `jaxsim.fit.read_steps`.

    Attributes:
        num_active: sequences in the step, those with a piece of prompt included.
        mean_context: tokens that each of them holds on average.
        prompt_tokens: prompt tokens that the step computes; 0 in a step that only decodes.
        token_contexts: sum over the pieces of prompt of their tokens times the context that each ends at.
        time_s: measured time of the step.
        groups: a label for each row, by which errors are reported and rows held out together; empty for none.
        source: where the rows are from, such as a file's name.
    """

    num_active: Column
    mean_context: Column
    prompt_tokens: Column
    token_contexts: Column
    time_s: Column
    groups: tuple[str, ...] = field(default=(), repr=False)
    source: str = "a table"

    def __post_init__(self) -> None:
        columns = (self.num_active, self.mean_context, self.prompt_tokens, self.token_contexts, self.time_s)
        if len({len(column) for column in columns} | ({len(self.groups)} if self.groups else set())) > 1:
            lengths = [*(len(column) for column in columns), *([len(self.groups)] if self.groups else [])]
            raise invalid("columns of steps", lengths, "of one length")
        if not len(self.time_s):
            raise invalid("rows of steps", 0, ">= 1")
        require_positive("time_s", self.time_s)
        _each("num_active", self.num_active, 1.0, "count the sequences whose prompt is being computed too")
        for name in ("mean_context", "prompt_tokens", "token_contexts"):
            _each(name, getattr(self, name), 0.0)
        prompt = self.prompt_tokens > 0
        least = self.prompt_tokens**2 / self.num_active
        bad = prompt & (self.token_contexts < 0.5 * least)
        if bad.any():
            raise invalid(
                "token_contexts",
                float(self.token_contexts[bad][0]),
                "prompt tokens times the context at their end in a step with a prompt",
                f"{self.prompt_tokens[bad][0]:g} tokens of one prompt from its beginning have the square of that",
            )

    @classmethod
    def of(
        cls,
        num_active: Any,
        time_s: Any,
        *,
        mean_context: Any = None,
        context_tokens: Any = None,
        prompt_tokens: Any = 0.0,
        prompt_context: Any = None,
        token_contexts: Any = None,
        groups: Any = (),
        source: str = "a table",
    ) -> StepTable:
        """Columns of one length, or single numbers that hold for every row.

        Args:
            num_active: sequences in the step.
            time_s: its time, seconds.
            mean_context: tokens a sequence holds on average; or
            context_tokens: tokens that all of them hold together.
            prompt_tokens: prompt tokens computed in the step.
            prompt_context: context at which the step's one piece of prompt ends; or
            token_contexts: the sum for several pieces. Left out, prompts are whole and one a step.
            groups: a label for each row.
            source: where the rows are from.
        """
        require((mean_context is None) != (context_tokens is None), "context", (mean_context, context_tokens),
                "either mean_context or context_tokens")  # fmt: skip
        if prompt_context is not None and token_contexts is not None:
            raise invalid("prompt contexts", "both", "either prompt_context or token_contexts")
        active, times, prompt = (np.asarray(column, dtype=np.float64) for column in (num_active, time_s, prompt_tokens))
        rows = np.broadcast_shapes(active.shape, times.shape, (1,))
        if mean_context is None:
            mean_context = np.asarray(context_tokens, dtype=np.float64) / np.maximum(active, 1.0)
        if token_contexts is None:
            token_contexts = prompt * (prompt if prompt_context is None else np.asarray(prompt_context))

        def column(values: Any) -> np.ndarray:
            array = np.asarray(values, dtype=np.float64)
            return np.broadcast_to(array, rows).copy() if array.ndim == 0 else array

        return cls(
            num_active=column(active),
            mean_context=column(mean_context),
            prompt_tokens=column(prompt),
            token_contexts=column(token_contexts),
            time_s=column(times),
            groups=tuple(map(str, groups)),
            source=source,
        )

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def has_prompt(self) -> np.ndarray:
        """Which rows compute prompt tokens."""
        return self.prompt_tokens > 0

    @property
    def rows(self) -> Rows:
        """The columns alone, each row of weight 1."""
        columns = (self.num_active, self.mean_context, self.prompt_tokens, self.token_contexts, self.time_s)
        return Rows(*columns, np.ones_like(self.time_s))

    def rows_of(self, chosen: np.ndarray) -> Rows | None:
        """The columns of the rows where `chosen` is true; None without any."""
        return Rows(*(column[chosen] for column in self.rows)) if chosen.any() else None

    def points(self) -> np.ndarray:
        """A number for each row: the same where everything but the time is."""
        settings = np.stack([self.num_active, self.mean_context, self.prompt_tokens, self.token_contexts], axis=1)
        return np.unique(settings, axis=0, return_inverse=True)[1].ravel()

    def only(self, chosen: np.ndarray) -> StepTable:
        """The rows where `chosen` is true."""
        groups = tuple(np.asarray(self.groups)[chosen].tolist()) if self.groups else ()
        columns = (self.num_active, self.mean_context, self.prompt_tokens, self.token_contexts, self.time_s)
        return StepTable(*(column[chosen] for column in columns), groups=groups, source=self.source)


STEP_OF_PADDING = Rows(1.0, 1.0, 0.0, 0.0, 1.0, 0.0)


def padded(columns: Any, padding: Any) -> Any:
    """Columns with copies of `padding` added up to a power of two: tables of many lengths share one compilation."""
    length = len(columns.weight)
    extra = max(LEAST_PADDED, 1 << (length - 1).bit_length()) - length
    longer = (np.concatenate([column, np.full(extra, value)]) for column, value in zip(columns, padding, strict=True))
    return type(columns)(*longer)


def _each(name: str, values: np.ndarray, least: float, hint: str = "") -> None:
    good = np.isfinite(values) & (values >= least)
    require(good, name, values, f">= {least:g} and finite in every row", hint)
