"""The laws against an engine that is stepped token by token, and against the published figures."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from des._jit import law as compiled_law
from jaxsim import physics
from jaxsim.physics import StepLaw

BARE = StepLaw(0.008, 0.0, 0.00065 / 8192, 0.0, 0.0)
FULL = StepLaw(0.008, 3e-5, 7.9e-8, 3.2e-5, 1.1e-9)
SEQUENCE_ONLY = StepLaw(0.004, 2e-4, 0.0, 0.0, 0.0)
LAWS = {"bare": BARE, "full": FULL, "sequence only": SEQUENCE_ONLY}
WORK_OF = {"step": physics.step_work, "kimura": physics.kimura_work}


def stepped(law, convention, chunk, input_tokens, output_tokens):
    """What one request adds to each step, prefill and decode apart, from an obvious engine."""
    prefill, decode = [], []
    prompt = 0
    while prompt < input_tokens:
        part = min(chunk, input_tokens - prompt)
        prompt += part
        if convention == "step":
            seconds = law.per_sequence_s + law.per_token_s * prompt
            seconds += (law.base_s**4 + (law.prefill_per_token_s * part) ** 4) ** 0.25 - law.base_s
            seconds += law.prefill_per_token2_s * part * prompt
        else:
            seconds = law.per_sequence_s + law.per_token_s * (input_tokens + output_tokens)
            seconds += max(law.prefill_per_token_s * part, law.base_s) - law.base_s
        prefill.append(seconds)
    generated = 1 if convention == "step" else 0
    while generated < output_tokens:
        held = input_tokens + (generated if convention == "step" else output_tokens)
        decode.append(law.per_sequence_s + law.per_token_s * held)
        generated += 1
    return prefill, decode


def unrolled(work):
    """The steps that a RequestWork stands for, in order."""
    full = [work.full_first_s + work.full_slope_s * j for j in range(int(work.full_steps))]
    decode = [work.decode_first_s + work.decode_slope_s * j for j in range(int(work.decode_steps))]
    return [*full, work.last_s], decode


LENGTHS = [
    (1, 1),  # the shortest there is
    (1, 7),
    (511, 3),
    (512, 3),  # one chunk to the token
    (513, 3),
    (1024, 1),  # no decode step in the step convention
    (5000, 40),
    (20_000, 250),
]


@pytest.mark.parametrize("convention", WORK_OF)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("chunk", [1, 100, 512, 30_000])
def test_work_of_every_step_equals_the_stepped_engine(convention, name, chunk):
    law = LAWS[name]
    for input_tokens, output_tokens in LENGTHS if chunk > 1 else LENGTHS[:5]:
        prefill, decode = stepped(law, convention, chunk, input_tokens, output_tokens)
        work = WORK_OF[convention](law, chunk, float(input_tokens), float(output_tokens))
        ours = unrolled(work)
        assert (len(ours[0]), len(ours[1])) == (len(prefill), len(decode))
        np.testing.assert_allclose(ours[0], prefill, rtol=1e-13, atol=1e-17)
        np.testing.assert_allclose(ours[1], decode, rtol=1e-13)
        assert physics.prefill_steps(work) == len(prefill)
        assert physics.total_steps(work) == len(prefill) + len(decode)
        assert physics.prefill_work(work) == pytest.approx(math.fsum(prefill), rel=1e-12)
        assert physics.decode_work(work) == pytest.approx(math.fsum(decode), rel=1e-12)
        squares = math.fsum(w * w for w in prefill + decode)
        assert physics.work_of_squares(work) == pytest.approx(squares, rel=1e-12)


def test_steps_of_the_two_conventions():
    """`step` yields the first token with the last prompt chunk; the reference adds a step for it."""
    lengths = (np.array([1.0, 512.0, 513.0]), np.array([1.0, 1.0, 10.0]))
    assert physics.total_steps(physics.step_work(BARE, 512.0, *lengths)).tolist() == [1, 1, 11]
    assert physics.total_steps(physics.kimura_work(BARE, 512.0, *lengths)).tolist() == [2, 2, 12]


def test_a_lone_prompt_in_one_chunk_costs_what_the_prefill_law_says():
    m = 400.0
    work = physics.step_work(FULL, 512.0, m, 1.0)
    alone = FULL.base_s + physics.prefill_work(work) - FULL.per_sequence_s - FULL.per_token_s * m
    compute = (FULL.base_s**4 + (FULL.prefill_per_token_s * m) ** 4) ** 0.25
    assert alone == pytest.approx(compute + FULL.prefill_per_token2_s * m**2, rel=1e-14)


@pytest.mark.parametrize("x", [1e-6, 0.008, 3.0])
def test_smoothmax_bounds(x):
    assert physics.smoothmax(x, 0.0) == pytest.approx(x, rel=1e-15)
    assert physics.smoothmax(x, x) == pytest.approx(2**0.25 * x, rel=1e-15)
    for y in (0.01 * x, 0.5 * x, 2 * x, 100 * x):
        assert max(x, y) <= physics.smoothmax(x, y) <= 2**0.25 * max(x, y)


SLOTS = [(2048, 512), (4096, 256), (8192, 128), (16384, 64), (65536, 16)]


@pytest.mark.parametrize(("max_context", "slots"), SLOTS)
def test_published_slots(max_context, slots):
    assert physics.num_slots(65536.0, 16.0, 128.0, 8192.0, float(max_context)) == slots


@pytest.mark.parametrize(
    ("max_context", "slots"),
    [(8191, 128), (8193, 127), (6144, 170), (1_048_576, 1), (1_048_577, 0), (2_097_152, 0)],
)
def test_slots_are_exact_integers_at_odd_contexts(max_context, slots):
    """A context beyond the whole cache has no slot; 6144 is capped by bandwidth at 170.67."""
    assert physics.num_slots(65536.0, 16.0, 128.0, 8192.0, float(max_context)) == slots


def test_slots_limited_by_blocks():
    """1000 blocks of 16 tokens; a context of 100 needs 7 blocks."""
    assert physics.num_slots(1000.0, 16.0, 10_000.0, 8192.0, 100.0) == 142


@given(
    blocks=st.integers(1, 10**6),
    size=st.integers(1, 256),
    seqs=st.integers(1, 1024),
    calibration=st.integers(1, 131_072),
    context=st.integers(1, 2**20),
)
@settings(max_examples=200, deadline=None)
def test_slots_equal_integer_arithmetic_and_relaxed_slots_are_above(blocks, size, seqs, calibration, context):
    exact = min(blocks // -(-context // size), seqs * calibration // context)
    arguments = [float(v) for v in (blocks, size, seqs, calibration, context)]
    assert physics.num_slots(*arguments) == exact
    relaxed = physics.num_slots_relaxed(*arguments)
    assert relaxed >= exact
    assert relaxed == pytest.approx(min(blocks * size / context, seqs * calibration / context), rel=1e-14)


@pytest.mark.parametrize(
    ("slots", "mean_total", "milliseconds"),
    [(512, 800, 40.5), (128, 1600, 24.25), (128, 5000, 58.78), (16, 15_000, 27.04)],
)
def test_published_step_times(slots, mean_total, milliseconds):
    step = physics.reference_step_time(0.008, 0.00065, float(slots), float(mean_total), 8192.0)
    assert step * 1e3 == pytest.approx(milliseconds, abs=0.01)
    together = 0.008 + slots * physics.held_work(BARE, float(mean_total))
    assert step == pytest.approx(together, rel=1e-14)


@given(steps=st.integers(0, 300), first=st.floats(-10, 10), slope=st.floats(-1, 1), base=st.floats(0, 5))
@settings(max_examples=150, deadline=None)
def test_series_equal_their_loops(steps, first, slope, base):
    values = [first + slope * j for j in range(steps)]
    size = math.fsum(abs(first) + abs(slope) * j for j in range(steps)) + 1e-300
    assert abs(physics.series_sum(float(steps), first, slope) - math.fsum(values)) <= 1e-14 * size
    squares = math.fsum(v * v for v in values)
    size2 = math.fsum((abs(first) + abs(slope) * j) ** 2 for j in range(steps)) + 1e-300
    assert abs(physics.series_sum_of_squares(float(steps), first, slope) - squares) <= 1e-13 * size2
    span = math.fsum(base + v for v in values)
    assert abs(physics.span_s(base, first, slope, float(steps)) - span) <= 1e-14 * (size + base * steps)


@pytest.mark.parametrize("convention", WORK_OF)
def test_jax_and_numpy_agree(convention):
    """One law, two libraries: the same work of many requests to rounding."""
    rng = np.random.default_rng(0)
    inputs, outputs = (np.floor(rng.uniform(1, high, 500)) for high in (30_000, 2_000))
    numpy_work = WORK_OF[convention](FULL, 512.0, inputs, outputs)
    jax_work = jax.jit(lambda i, o: WORK_OF[convention](FULL, 512.0, i, o))(jnp.asarray(inputs), jnp.asarray(outputs))
    for name, expected in numpy_work._asdict().items():
        np.testing.assert_allclose(getattr(jax_work, name), expected, rtol=4e-16, atol=1e-18, err_msg=name)
    tokens = np.unique(rng.integers(1, 10**6, 500)).astype(float)
    assert np.array_equal(physics.kv_blocks(jnp.asarray(tokens), 16.0), -(-tokens.astype(int) // 16))


SCALARS = {
    "series_sum": (300.0, 0.011, 3e-6),
    "series_sum_of_squares": (300.0, 0.011, 3e-6),
    "span_s": (0.008, 0.011, 3e-6, 300.0),
    "smoothmax": (0.008, 0.0075),
    "held_work": (FULL, 1234.0),
    "chunk_work": (FULL, 511.0, 1023.0),
    "reference_step_time": (0.008, 0.00065, 128.0, 1600.0, 8192.0),
}


@pytest.mark.parametrize("name", SCALARS)
def test_the_compiled_loop_agrees(name):
    """NumPy, JAX and the machine code of the hot loop give one number."""
    arguments = SCALARS[name]
    plain = getattr(physics, name)(*arguments)
    assert compiled_law(getattr(physics, name))(*arguments) == pytest.approx(plain, rel=1e-15)
    traced = jax.jit(getattr(physics, name))(*arguments)
    # chunk_work subtracts base: 1e-15 of the terms, a little more of their difference
    assert float(traced) == pytest.approx(plain, rel=4e-15 if name == "chunk_work" else 1e-15)


@pytest.mark.parametrize("convention", WORK_OF)
def test_gradients_are_finite_and_right(convention):
    """In every coefficient, zero prefill coefficients and a prompt that fills its chunk included."""

    def total(law, chunk):
        work = WORK_OF[convention](law, chunk, 1024.0, 20.0)
        return physics.prefill_work(work) + physics.decode_work(work)

    for law in LAWS.values():
        arrays = StepLaw(*(jnp.asarray(float(v)) for v in law))
        slopes = jax.grad(total, argnums=(0, 1))(arrays, jnp.asarray(512.0))
        assert all(np.isfinite(v) for v in jax.tree.leaves(slopes))
        prefill, decode = stepped(StepLaw(1.0, 0.0, 1.0, 0.0, 0.0), convention, 512, 1024, 20)
        held = math.fsum(prefill + decode)  # tokens held, summed over the request's steps
        assert float(slopes[0].per_token_s) == pytest.approx(held, rel=1e-12)
        steps = float(physics.total_steps(WORK_OF[convention](law, 512.0, 1024.0, 20.0)))
        assert float(slopes[0].per_sequence_s) == pytest.approx(steps, rel=1e-14)


def test_slots_relaxed_has_the_gradient_of_its_tighter_bound():
    slope = jax.grad(lambda context: physics.num_slots_relaxed(65536.0, 16.0, 128.0, 8192.0, context))
    assert float(slope(jnp.asarray(4096.0))) == pytest.approx(-128 * 8192 / 4096**2, rel=1e-14)
