r"""THE laws: step time, per-request work, KV blocks and slots. Each is defined once, here.

A request takes a number of *steps*; in each it adds *work* (seconds) to the step of the batch it is in:

$$\tau = \text{base} + \sum_{i \in \text{batch}} w_i(u_i)$$

with $u_i$ the age of request $i$ in steps. The work is linear in age within three phases: the full prompt
chunks, the last prompt chunk (which yields the first token) and the decode steps. Two conventions:

- ``step``: context grows token by token; ``ceil(input/chunk)`` prefill steps, ``output - 1`` decode steps.
- ``kimura``: the reference fleet model, each request at its total length from its first step;
  ``ceil(input/chunk)`` prefill steps, ``output`` decode steps (vLLM Semantic Router fleet simulator,
  model reference, sections 1 to 3).

Units: seconds, tokens. Every function takes JAX or NumPy arrays of one shape (or scalars) and
differentiates in its float coefficients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxsim._ops import ceil_div, floor_div, maximum, minimum

SMOOTHMAX_ORDER = 4.0
"""Order of the norm in `smoothmax`; 4 bends within +-19 % of the ridge point and is base at p m = 0."""


class StepLaw(NamedTuple):
    """Coefficients of the step time (seconds; per sequence, per context token, per prompt token).

    `prefill_per_token2_s` is the attention term: seconds per prompt token of the chunk and token of context.
    `overhead_s` is what the engine adds to every step beside the GPU's work (scheduler, sampling, launches).
    """

    base_s: Any
    per_sequence_s: Any
    per_token_s: Any
    prefill_per_token_s: Any
    prefill_per_token2_s: Any
    overhead_s: Any = 0.0


class RequestWork(NamedTuple):
    """A request in an engine: the steps of its three phases and the work (seconds) it adds in each step.

    Step ``j`` of a phase adds ``first + slope * j``. Full chunks come first, then one last chunk, then decode.
    """

    full_steps: Any
    full_first_s: Any
    full_slope_s: Any
    last_s: Any
    decode_steps: Any
    decode_first_s: Any
    decode_slope_s: Any


def smoothmax(x: Any, y: Any) -> Any:
    r"""$(x^4 + y^4)^{1/4}$ for x > 0, y >= 0: the larger of two bounds, with a rounded ridge."""
    return (x**SMOOTHMAX_ORDER + y**SMOOTHMAX_ORDER) ** (1.0 / SMOOTHMAX_ORDER)


def step_base_s(law: StepLaw) -> Any:
    """Seconds of a step whatever the batch: the GPU's and the engine's."""
    return law.base_s + law.overhead_s


def prompt_work(law: StepLaw, tokens: Any, token_contexts: Any) -> Any:
    r"""Work of the prompt tokens of one step: $\mathrm{smoothmax}(\text{base}, p\,m) - \text{base} + c\,a$.

    Args:
        tokens: m, prompt tokens that the step computes.
        token_contexts: a, sum over its prompt pieces of their tokens times the context each ends at.
    """
    compute = smoothmax(law.base_s, law.prefill_per_token_s * tokens) - law.base_s
    return compute + law.prefill_per_token2_s * token_contexts


def chunk_work(law: StepLaw, tokens: Any, context: Any) -> Any:
    r"""Work of one prompt chunk by itself, `prompt_work` of $m$ tokens at context $x$.

    Args:
        tokens: m, prompt tokens of the chunk.
        context: x, tokens the request holds in that step (its prompt so far, this chunk included), so that
            a prompt in a single chunk costs ``smoothmax(base, p m) + c m**2`` in all.
    """
    return prompt_work(law, tokens, tokens * context)


def held_work(law: StepLaw, context: Any) -> Any:
    """Work of a request that holds `context` tokens: its sequence and its KV read."""
    return law.per_sequence_s + law.per_token_s * context


def step_work(law: StepLaw, chunk: Any, input_tokens: Any, output_tokens: Any, cached_tokens: Any = 0.0) -> RequestWork:
    """The ``step`` convention: context as held in each step (prompt so far, then prompt + generated).

    `cached_tokens` < `input_tokens` of the prompt are held from the start and not computed.
    """
    full = ceil_div(input_tokens - cached_tokens, chunk) - 1.0
    last = input_tokens - cached_tokens - full * chunk
    first = cached_tokens + chunk
    slope = (law.per_token_s + law.prefill_per_token2_s * chunk) * chunk
    return RequestWork(
        full_steps=full,
        full_first_s=held_work(law, first) + chunk_work(law, chunk, first) + 0.0 * full,
        full_slope_s=slope + 0.0 * full,
        last_s=held_work(law, input_tokens) + chunk_work(law, last, input_tokens),
        decode_steps=output_tokens - 1.0,
        decode_first_s=held_work(law, input_tokens + 1.0),
        decode_slope_s=law.per_token_s + 0.0 * full,
    )


def kimura_work(
    law: StepLaw, chunk: Any, input_tokens: Any, output_tokens: Any, cached_tokens: Any = 0.0
) -> RequestWork:
    """The reference convention: every step at the request's total length; prefill at the slower bound."""
    full = ceil_div(input_tokens - cached_tokens, chunk) - 1.0
    held = held_work(law, input_tokens + output_tokens)
    last = input_tokens - cached_tokens - full * chunk
    return RequestWork(
        full_steps=full,
        full_first_s=held + maximum(law.prefill_per_token_s * chunk - law.base_s, 0.0),
        full_slope_s=0.0 * full,
        last_s=held + maximum(law.prefill_per_token_s * last - law.base_s, 0.0),
        decode_steps=output_tokens + 0.0,
        decode_first_s=held,
        decode_slope_s=0.0 * full,
    )


def series_sum(steps: Any, first: Any, slope: Any) -> Any:
    """Sum of ``first + slope * j`` over ``j = 0 .. steps - 1``."""
    return steps * first + slope * steps * (steps - 1.0) / 2.0


def series_sum_of_squares(steps: Any, first: Any, slope: Any) -> Any:
    """Sum of ``(first + slope * j)**2`` over ``j = 0 .. steps - 1``."""
    ages = steps * (steps - 1.0)
    return steps * first**2 + first * slope * ages + slope**2 * ages * (2.0 * steps - 1.0) / 6.0


def span_s(base: Any, work: Any, growth: Any, steps: Any) -> Any:
    """Seconds that `steps` consecutive steps take, from a step with `work` that grows by `growth` a step."""
    return series_sum(steps, base + work, growth)


def prefill_steps(work: RequestWork) -> Any:
    """Steps until the first token."""
    return work.full_steps + 1.0


def total_steps(work: RequestWork) -> Any:
    """Steps until the last token."""
    return work.full_steps + 1.0 + work.decode_steps


def prefill_work(work: RequestWork) -> Any:
    """Work until the first token, seconds."""
    return series_sum(work.full_steps, work.full_first_s, work.full_slope_s) + work.last_s


def decode_work(work: RequestWork) -> Any:
    """Work after the first token, seconds."""
    return series_sum(work.decode_steps, work.decode_first_s, work.decode_slope_s)


def work_of_squares(work: RequestWork) -> Any:
    """Sum over the request's steps of its work squared, seconds squared."""
    return (
        series_sum_of_squares(work.full_steps, work.full_first_s, work.full_slope_s)
        + work.last_s**2
        + series_sum_of_squares(work.decode_steps, work.decode_first_s, work.decode_slope_s)
    )


def kv_blocks(tokens: Any, block_size: Any) -> Any:
    """Blocks that hold `tokens` tokens."""
    return ceil_div(tokens, block_size)


def num_slots(
    kv_blocks_total: Any, block_size: Any, max_num_seqs: Any, calibration_context: Any, max_context: Any
) -> Any:
    """Slots of the reference model: KV blocks for `max_context` each, and the bandwidth cap scaled to it."""
    by_kv = floor_div(kv_blocks_total, kv_blocks(max_context, block_size))
    return minimum(by_kv, floor_div(max_num_seqs * calibration_context, max_context))


def num_slots_relaxed(
    kv_blocks_total: Any, block_size: Any, max_num_seqs: Any, calibration_context: Any, max_context: Any
) -> Any:
    """`num_slots` without rounding: an upper bound that has a gradient in `max_context`."""
    return minimum(kv_blocks_total * block_size, max_num_seqs * calibration_context) / max_context


def reference_step_time(
    base_s: Any, per_sequence_s: Any, num_active: Any, mean_total: Any, calibration_context: Any
) -> Any:
    r"""Step time of the reference model, $W + H \frac{\text{mean total}}{\text{calibration context}} n$."""
    return base_s + per_sequence_s * mean_total / calibration_context * num_active
