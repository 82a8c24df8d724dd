"""Fits of the step law: recovered coefficients, standard errors, outliers, doubts, derivatives."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from scipy.optimize import minimize
from scipy.stats import binom
from scipy.stats import t as student

import jaxsim
from jaxsim.fit import COEFFICIENTS, Doubt, StepTable, fit_steps, knee, steps, two_point
from jaxsim.fit._solve import soft_l1
from jaxsim.fit.doubts import condition_number, jacobian, step_doubts
from jaxsim.fit.folds import FOLDS
from jaxsim.fit.identify import stages_for
from jaxsim.fit.law import LawFit, Stages, fit_law
from jaxsim.fit.table import STEP_OF_PADDING, Rows, padded, step_seconds
from jaxsim.physics import StepLaw

LAW = StepLaw(0.012, 3e-5, 6e-8, 5e-5, 2e-9, 0.0)
ALL = Stages(COEFFICIENTS[:3], COEFFICIENTS[3:])
SEED = 20240


def made(law=LAW, *, batches=(1, 4, 16, 64, 128), contexts=(128, 1024, 2048, 8192), longest=8192, noise=0.0, seed=SEED):
    """Steps that only decode, whole prompts alone, and whole prompts beside 32 sequences that decode."""
    batch, context = (grid.ravel().astype(float) for grid in np.meshgrid(batches, contexts))
    prompt = 2.0 ** np.arange(5, int(np.log2(longest)) + 1)
    table = StepTable.of(
        np.concatenate([batch, np.ones_like(prompt), np.full_like(prompt, 33.0)]),
        np.ones(len(batch) + 2 * len(prompt)),
        context_tokens=np.concatenate([batch * context, prompt, prompt + 32.0 * 1000.0]),
        prompt_tokens=np.concatenate([0.0 * batch, prompt, prompt]),
        groups=[*("decode only" for _ in batch), *("alone" for _ in prompt), *("beside" for _ in prompt)],
        source="steps.csv",
    )
    error = noise * np.random.default_rng(seed).standard_normal(len(table))
    return timed(table, step_seconds(law, table.rows) * (1.0 + error))


def timed(table, seconds):
    return dataclasses.replace(table, time_s=np.asarray(seconds, dtype=float))


def padded_rows(table):
    return padded(table.rows, STEP_OF_PADDING)


def coefficients(law):
    return np.array([getattr(law, name) for name in COEFFICIENTS])


def kinds(warned):
    return {each.kind for each in warned}


def test_a_law_is_recovered():
    fit = fit_steps(made())
    assert coefficients(fit.law) == pytest.approx(coefficients(LAW), rel=1e-6)
    assert fit.warned == () and fit.at_bound == () and fit.fitted == COEFFICIENTS
    assert set(fit.errors) == {"all", "decode", "prompt", "decode only", "alone", "beside"}
    assert max(each.worst for each in (*fit.errors.values(), *fit.held_out.values())) < 1e-6
    assert fit.errors["all"].rows == len(made())


def test_a_known_overhead_is_taken_from_the_base():
    law = LAW._replace(overhead_s=0.003)
    fit = fit_steps(made(law), overhead_s=0.003)
    assert coefficients(fit.law) == pytest.approx(coefficients(law), rel=1e-6)
    assert fit.law.overhead_s == 0.003


@settings(deadline=None, max_examples=20)
@given(
    st.tuples(
        st.floats(1e-3, 0.2),
        st.floats(1e-3, 1.0),
        st.floats(1e-6, 1e-3),
        st.floats(5e-4, 0.1),
        st.floats(1e-9, 1e-7),
    )
)
def test_any_law_is_recovered(shares):
    """Over what models and hardware can be: each coefficient in parts of the base."""
    base, sequence, token, prompt, pair = shares
    law = StepLaw(base, base * sequence, base * token, base * prompt, base * pair, 0.0)
    assert coefficients(fit_steps(made(law)).law) == pytest.approx(coefficients(law), rel=1e-6)


def test_the_fit_is_the_minimum_that_scipy_finds():
    """Another minimiser, another form of the loss, from the true law."""
    table = made(noise=0.05)
    fit = fit_steps(table, scale=0.03)
    rows = table.only(~table.has_prompt)

    def loss(ratios):
        law = LAW._replace(**dict(zip(COEFFICIENTS, ratios * coefficients(LAW)[:3], strict=False)))
        errors = step_seconds(law, rows.rows) / rows.time_s - 1.0
        return 1e3 * np.sum(np.sqrt(1.0 + (errors / 0.03) ** 2) - 1.0)

    best = minimize(loss, np.ones(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000})
    assert coefficients(fit.law)[:3] == pytest.approx(best.x * coefficients(LAW)[:3], rel=1e-5)


@pytest.mark.parametrize("residual", [0.0, 1e-9, 0.01, -0.3, 5.0])
def test_soft_l1(residual):
    """Its half square is the loss."""
    scale = 0.05
    loss = scale**2 * (np.sqrt(1.0 + (residual / scale) ** 2) - 1.0)
    assert 0.5 * float(soft_l1(residual, scale)) ** 2 == pytest.approx(loss, rel=1e-6, abs=1e-15)
    check_grads(lambda r: soft_l1(r, scale), (jnp.asarray(residual),), order=1, modes=("rev",))


def test_outliers_hardly_move_a_coefficient():
    """A tenth of the rows at twice their time."""
    table = made(batches=(1, 2, 8, 16, 64, 128), contexts=(128, 512, 1024, 2048, 4096, 8192), noise=0.001)
    for seed in range(20):
        doubled = np.random.default_rng(seed).choice(len(table), len(table) // 10, replace=False)
        seconds = table.time_s.copy()
        seconds[doubled] *= 2.0
        fit = fit_steps(timed(table, seconds))
        assert coefficients(fit.law) == pytest.approx(coefficients(fit_steps(table).law), rel=0.01)
        assert Doubt.OUTLIERS in kinds(fit.warned)
        plain = fit_steps(timed(table, seconds), scale=100.0)  # as good as least squares
        assert np.max(np.abs(coefficients(plain.law) / coefficients(LAW) - 1.0)) > 0.05


def test_standard_errors_cover():
    """95 % intervals hold the truth in 95 % of 300 tables, up to what chance does to 300."""
    number, level = 300, 0.95
    table = made()
    rows, size = padded_rows(table), FOLDS + 1
    noise = 0.02 * np.random.default_rng(SEED).standard_normal((number // size, size, len(table)))
    times = np.tile(rows.time_s, (number // size, size, 1))
    times[..., : len(table)] *= 1.0 + noise
    stack = Rows(*(np.tile(column, (size, 1)) for column in rows))
    nothing = np.asarray(0.0)
    batches = [steps._fits(stack._replace(time_s=batch), ALL.masks, np.asarray(np.nan), nothing) for batch in times]
    found = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    assert found.converged.all() and not found.at_bound.any()
    values = np.stack([getattr(found.law, name) for name in COEFFICIENTS], axis=1)
    errors = np.sqrt(np.diagonal(found.covariance, axis1=1, axis2=2))
    decodes = int((~table.has_prompt).sum())
    freedom = np.array([decodes - 3] * 3 + [len(table) - decodes - 2] * 2)
    inside = np.abs(values - coefficients(LAW)) <= student.ppf(0.5 + 0.5 * level, freedom) * errors
    low, high = binom.ppf([0.0005, 0.9995], number, level) / number
    assert np.all((inside.mean(axis=0) >= low) & (inside.mean(axis=0) <= high)), inside.mean(axis=0)
    one = fit_steps(timed(table, times[0, 0, : len(table)]))
    assert coefficients(one.standard_errors) == pytest.approx(errors[0], rel=1e-6)
    for name, freedom_of in zip(COEFFICIENTS, freedom, strict=True):
        low, high = one.interval(level)[name]
        half = student.ppf(0.5 + 0.5 * level, freedom_of) * getattr(one.standard_errors, name)
        assert (low, high) == pytest.approx((getattr(one.law, name) - half, getattr(one.law, name) + half))


def falling(seed=SEED):
    """Steps that get shorter with every sequence, which no law allows."""
    table = made(noise=0.001, seed=seed)
    return timed(table, table.time_s - 4e-5 * table.num_active)


def test_a_coefficient_can_be_zero():
    fit = fit_steps(falling())
    assert fit.law.per_sequence_s == 0.0
    assert fit.at_bound == ("per_sequence_s",)
    assert np.isnan(fit.standard_errors.per_sequence_s) and "per_sequence_s" not in fit.interval()
    assert fit.covariance[1].tolist() == [0.0] * 5
    assert Doubt.AT_BOUND in kinds(fit.warned)
    assert np.isfinite(coefficients(fit.standard_errors)[[0, 2, 3, 4]]).all()


def test_derivatives_of_the_fit():
    """In the times, by the implicit function theorem, against refits; none of a coefficient at its bound."""

    @jax.jit
    def summed(times, factors):
        def total(times):
            found = fit_law(rows._replace(time_s=times), ALL.masks, scale=jnp.asarray(0.03))
            return factors @ jnp.stack([getattr(found.law, name) for name in COEFFICIENTS])

        return jax.value_and_grad(total)(times)

    for table in (made(noise=0.02), falling()):
        rows = padded_rows(table)
        times = jnp.asarray(rows.time_s)
        for name in ("base_s", "per_token_s", "prefill_per_token2_s"):
            factors = np.eye(5)[COEFFICIENTS.index(name)] / getattr(LAW, name)
            gradient = np.asarray(summed(times, factors)[1])
            assert np.isfinite(gradient).all() and not gradient[len(table) :].any()
            for row in (0, 7, 19, 22, 37):
                step = 1e-5 * float(times[row])
                up, down = (float(summed(times.at[row].add(sign * step), factors)[0]) for sign in (1.0, -1.0))
                assert gradient[row] * step == pytest.approx(0.5 * (up - down), rel=1e-4, abs=1e-11)
    value, gradient = summed(times, np.eye(5)[1])
    assert value == 0.0 and not gradient.any()


def test_one_compilation_serves_tables_of_many_lengths(monkeypatch):
    """And any scale, overhead and choice of coefficients; what is compiled is replaced by something short."""

    def law_of(tables, masks, scale, overhead_s):
        number = len(tables.weight)
        law = StepLaw(*(jnp.full(number, value) for value in LAW))
        covariance, at_bound = jnp.zeros((number, 5, 5)), jnp.zeros((number, 5), dtype=bool)
        return LawFit(law, covariance, at_bound, jnp.ones((number, 2)), at_bound[:, 0])

    counted = eqx.debug.assert_max_traces(max_traces=1)(law_of)
    monkeypatch.setattr(steps, "_fits", eqx.filter_jit(counted))
    whole = made(noise=0.02)
    for rows, scale, fitted in ((38, None, COEFFICIENTS), (37, 0.1, COEFFICIENTS[:2]), (20, 0.2, COEFFICIENTS)):
        fit_steps(whole.only(np.arange(len(whole)) < rows), scale=scale, fitted=fitted, overhead_s=1e-3 * rows)
    assert eqx.debug.get_num_traces(counted) == 1


def test_held_out_errors_are_those_of_refits():
    table = made(noise=0.03)
    fit = fit_steps(table, seed=3)
    labels = table.points()
    folds = np.random.default_rng(3).permutation(labels.max() + 1)[labels] % FOLDS
    by_hand = np.empty(len(table))
    for fold in range(FOLDS):
        out = folds == fold
        by_hand[out] = (fit_steps(table.only(~out)).seconds(table) / table.time_s - 1.0)[out]
    assert fit.held_out["all"].median == pytest.approx(np.median(np.abs(by_hand)), rel=1e-6)
    assert fit.held_out["all"].worst == pytest.approx(np.max(np.abs(by_hand)), rel=1e-6)
    assert fit.held_out["all"].mean > fit.errors["all"].mean


def test_groups_are_held_out_whole():
    """A group that is unlike the others has a large error where the law has not seen it."""
    table = made(noise=0.001)
    largest = table.num_active == 128.0
    groups = np.where(largest, "largest", [f"day {row % 4}" for row in range(len(table))])
    table = dataclasses.replace(table, groups=tuple(groups), time_s=np.where(largest, 1.3, 1.0) * table.time_s)
    by_setting, by_group = fit_steps(table), fit_steps(table, hold_out="groups")
    assert by_group.law == by_setting.law
    assert by_group.held_out["largest"].median > 0.2 > by_group.held_out["day 1"].worst
    assert by_group.held_out["largest"].median > by_setting.held_out["largest"].median


def test_a_fold_that_leaves_too_little_is_not_held_out():
    table = made()
    few = fit_steps(table, hold_out="groups")  # without "decode only", nothing determines the decode law
    assert few.held_out == {} and Doubt.NOT_HELD_OUT in kinds(few.warned)


class Case:
    """Steps that cannot tell everything, and the doubts that are exactly those to have."""

    def __init__(self, table, fitted, *doubted):
        self.table, self.fitted, self.doubted = table, fitted, set(doubted)


def decode(batches, contexts):
    batch, context = np.broadcast_arrays(np.asarray(batches, dtype=float), np.asarray(contexts, dtype=float))
    return StepTable.of(batch, 0.01 + 1e-5 * batch, mean_context=context)


def with_prompts(tokens, ends):
    table = made()
    alone = StepTable.of(1.0, 0.02 + 1e-5 * np.asarray(tokens), mean_context=ends, prompt_tokens=tokens,
                         prompt_context=ends)  # fmt: skip
    return joined(table.only(~table.has_prompt), alone)


def joined(*tables):
    names = ("num_active", "mean_context", "prompt_tokens", "token_contexts", "time_s")
    return StepTable(*(np.concatenate([getattr(table, name) for table in tables]) for name in names))


def whole_prompts(tokens):
    tokens = np.asarray(tokens, dtype=float)
    return StepTable.of(1.0, 0.01 + 1e-5 * tokens, mean_context=tokens, prompt_tokens=tokens)


def piece(tokens, ends, decoding):
    return StepTable.of(decoding + 1.0, 0.01 + 1e-5 * tokens, context_tokens=ends + 900.0 * decoding,
                        prompt_tokens=tokens, prompt_context=ends)  # fmt: skip


BASE, SEQUENCE, TOKEN, PROMPT, PAIR = COEFFICIENTS
CASES = {
    "everything": Case(made(), COEFFICIENTS),
    "no prompts": Case(decode([1, 2, 1, 2], [9, 9, 99, 99]), (BASE, SEQUENCE, TOKEN), Doubt.NO_PROMPTS),
    "one context": Case(decode([1, 8, 64], 512), (BASE, TOKEN), Doubt.ONE_CONTEXT, Doubt.NO_PROMPTS),
    "one batch": Case(decode(8, [128, 512, 4096]), (BASE, TOKEN), Doubt.ONE_BATCH, Doubt.NO_PROMPTS),
    "one point": Case(decode([8, 8, 8], 512), (BASE,), Doubt.ONE_POINT, Doubt.NO_PROMPTS),
    "batch and context together": Case(
        decode([1, 2, 4, 8], [800, 400, 200, 100]), (BASE, SEQUENCE), Doubt.COLLINEAR, Doubt.NO_PROMPTS
    ),
    "two rows": Case(decode([1, 8], [512, 100]), (BASE, TOKEN), Doubt.COLLINEAR, Doubt.NO_PROMPTS),
    "prompts alone": Case(whole_prompts([64, 512, 4096]), (BASE, PROMPT, PAIR), Doubt.NO_DECODES),
    "one prompt": Case(whole_prompts([512, 512]), (BASE,), Doubt.NO_DECODES, Doubt.ONE_PROMPT_LENGTH),
    "mixed only": Case(
        piece(np.array([64.0, 512, 64, 512, 99, 77]), np.array([99.0, 999, 2099, 699, 99, 77]),
              np.array([1.0, 2, 30, 4, 50, 9])),
        COEFFICIENTS,
    ),
    "prompts of one length": Case(with_prompts([512, 512], [512, 512]), (*COEFFICIENTS[:4],), Doubt.ONE_PROMPT_CONTEXT),
    "chunks to one end": Case(with_prompts([512, 256], [4096, 4096]), (*COEFFICIENTS[:4],), Doubt.ONE_PROMPT_CONTEXT),
    "chunks of one prompt": Case(with_prompts([512, 512], [512, 1024]), COEFFICIENTS),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_the_rows_cannot_tell(name):
    case = CASES[name]
    found, warned = stages_for(case.table)
    assert found.fitted == case.fitted
    assert kinds(warned) == case.doubted
    for each in warned:
        assert "0" in each.text and not each.text.endswith(".")


def test_what_was_not_asked_for_is_not_missed():
    found, warned = stages_for(decode([1, 8, 64], 512), ("base_s", "per_token_s"))
    assert found == Stages(("base_s", "per_token_s"), ()) and warned == ()


def after(table=None, law=LAW, *, errors=None, at_bound=(), converged=True):
    errors = StepLaw(*(0.01 * coefficients(law))) if errors is None else errors
    found = step_doubts(made() if table is None else table, law, ALL, standard_errors=errors, at_bound=at_bound,
                        scales={"decode": 0.05, "prompt": 0.05}, converged=converged)  # fmt: skip
    return {each.kind: each.text for each in found}


def test_doubts_about_a_known_law():
    """Each alone, with its figures, and none where all is well."""
    assert after() == {}
    assert set(after(converged=False)) == {Doubt.NOT_CONVERGED}
    assert set(after(at_bound=("per_sequence_s",))) == {Doubt.AT_BOUND}
    uncertain = after(errors=StepLaw(1e-5, 2e-5, 1e-10, 1e-8, 1e-13))
    assert set(uncertain) == {Doubt.UNCERTAIN} and "per_sequence_s is known to 67% only" in uncertain[Doubt.UNCERTAIN]
    close = made(contexts=(500, 501, 502, 503))
    assert set(after(close)) == {Doubt.ILL_CONDITIONED}
    short = after(made(longest=128))
    assert set(short) == {Doubt.NO_LONG_PROMPT} and "128" in short[Doubt.NO_LONG_PROMPT]
    few = after(made(batches=(1, 128), contexts=(128, 8192)))
    assert set(few) == {Doubt.FEW_ROWS} and "4 rows that only decode for 3 coefficients" in few[Doubt.FEW_ROWS]
    far = made()
    far.time_s[0] *= 2.0
    outlier = after(far)
    assert set(outlier) == {Doubt.OUTLIERS} and "1 of 20 rows that only decode" in outlier[Doubt.OUTLIERS]


def test_prompts_that_are_all_long_leave_the_base_to_the_shape():
    table = whole_prompts([2048, 3000, 4096, 8192, 9000, 10000])
    found = step_doubts(table, LAW, Stages((), ("base_s", "prefill_per_token_s")), converged=True, at_bound=(),
                        standard_errors=StepLaw(*[1e-12] * 5), scales={"prompt": 10.0})  # fmt: skip
    assert kinds(found) == {Doubt.NO_SHORT_PROMPT}


def test_condition_number():
    """1 for columns at right angles; that of the two columns by hand otherwise."""
    rows = decode([1.0, 3.0], 100.0).rows
    law = StepLaw(0.01, 1e-5, 0.0, 0.0, 0.0)
    columns = np.array([[1.0, 1.0], [1.0, 3.0]]) / rows.time_s[:, None]
    columns /= np.linalg.norm(columns, axis=0)
    found = jacobian(rows, law, ("base_s", "per_sequence_s"))
    assert condition_number(found) == pytest.approx(np.linalg.cond(columns), rel=1e-6)
    assert condition_number(found[:1]) == condition_number([]) == 1.0


def test_the_kimura_form_is_a_law_without_a_per_sequence_term():
    fit = fit_steps(made(LAW._replace(per_sequence_s=0.0)), fitted=("base_s", "per_token_s"))
    assert fit.law.base_s == pytest.approx(LAW.base_s, rel=1e-6)
    assert fit.law.per_token_s == pytest.approx(LAW.per_token_s, rel=1e-6)
    assert fit.fitted == ("base_s", "per_token_s") and fit.law.per_sequence_s == 0.0


def test_a_fit_becomes_a_profile():
    fit = fit_steps(made(noise=0.02))
    given = jaxsim.profile("h100-80gb")
    ours = fit.applied_to(given, name="ours")
    assert coefficients(ours) == pytest.approx(coefficients(fit.law))
    assert (ours.name, ours.gpu, float(ours.kv_blocks)) == ("ours", given.gpu, float(given.kv_blocks))
    share = 100.0 * fit.errors["all"].median
    assert ours.source == f"fitted to 38 rows of steps.csv, median error {share:.1f}%"
    new = fit.profile(name="mine", gpu="H100", chunk_tokens=2048, max_num_seqs=64, kv_blocks=4096)
    assert coefficients(new) == pytest.approx(coefficients(fit.law)) and new.source == ours.source
    text = fit.summary()
    assert all(name in text for name in COEFFICIENTS) and "on rows held out" in text


def kinked(knee_at, excess):
    table = made(batches=(1, 4, 16, 32, 64, 96, 128))
    table = table.only(~table.has_prompt)
    return timed(table, table.time_s + excess * np.maximum(table.num_active - knee_at, 0.0))


def test_knee():
    found = knee(kinked(64.0, 1e-4))
    assert found.num_active == 64.0
    assert found.excess_s == pytest.approx(1e-4, rel=1e-6)
    assert found.gain > 0.99 and found.mean_error_with_knee < 1e-6 < found.mean_error
    none = knee(kinked(64.0, 0.0))
    assert none.num_active == np.inf and none.gain == none.excess_s == 0.0


def test_two_points():
    law = two_point(1.0, 0.010, 32.0, 0.0255)
    assert (law.base_s, law.per_sequence_s, law.per_token_s) == pytest.approx((0.0095, 5e-4, 0.0))
    at_context = two_point(1.0, 0.010, 32.0, 0.0255, mean_context=1000.0)
    assert (at_context.per_sequence_s, at_context.per_token_s) == pytest.approx((0.0, 5e-7))
    points = tuple(map(jnp.asarray, (1.0, 0.010, 32.0, 0.0255)))
    check_grads(lambda *p: jnp.stack(two_point(*p)[:2]), points, order=1, modes=("fwd", "rev"), rtol=1e-5)
    batched = jax.vmap(lambda t2: two_point(1.0, 0.010, 32.0, t2).base_s)(jnp.asarray([0.0255, 0.0255]))
    assert np.asarray(batched) == pytest.approx([0.0095, 0.0095])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: two_point(8, 0.01, 8, 0.02), r"n2 must be another batch than n1 \(8\), got 8"),
        (lambda: two_point(1, 0.02, 8, 0.01), r"t2 must be no less than t1 \(0.02\) for the larger batch, got 0.01"),
        (lambda: two_point(1, 0.01, 2, 0.05), "t2 must be such that a step with no sequence takes time, got 0.05"),
        (lambda: two_point(0, 0.01, 8, 0.02), "n1 must be > 0 and finite, got 0"),
        (lambda: two_point(1, 0.01, 8, 0.02, mean_context=0), "mean_context must be > 0 and finite"),
        (lambda: StepTable.of([], [], mean_context=1.0), "rows of steps must be >= 1, got 0"),
        (lambda: StepTable.of([1.0], [0.0], mean_context=1.0), "time_s must be > 0 and finite, got 0.0"),
        (lambda: StepTable.of([1.0], [np.nan], mean_context=1.0), "time_s must be > 0 and finite, got nan"),
        (lambda: StepTable.of([0.5], [1.0], mean_context=1.0), "num_active must be >= 1 and finite in every row, got"),
        (lambda: StepTable.of([1.0], [1.0], mean_context=-1.0), "mean_context must be >= 0"),
        (lambda: StepTable.of([1.0], [1.0]), "context must be either mean_context or context_tokens, got"),
        (lambda: StepTable.of([1.0], [1.0], mean_context=1.0, context_tokens=1.0), "either mean_context or context"),
        (
            lambda: StepTable.of([1.0], [1.0], mean_context=1.0, prompt_context=1.0, token_contexts=1.0),
            "prompt contexts must be either prompt_context or token_contexts, got 'both'",
        ),
        (
            lambda: StepTable.of([1.0], [1.0], mean_context=9.0, prompt_tokens=512.0, prompt_context=1.0),
            "token_contexts must be prompt tokens times the context at their end",
        ),
        (lambda: StepTable.of([1.0, 2.0], [1.0, 1.0, 1.0], mean_context=1.0), "shape mismatch"),
        (lambda: StepTable.of([1.0], [1.0], mean_context=1.0, groups=["a", "b"]), "columns of steps must be of one"),
        (lambda: fit_steps(made(), fitted=("base",)), "unknown coefficient 'base'; did you mean 'base_s'"),
        (lambda: fit_steps(made(), fitted=("per_token_s",)), "fitted must be coefficients with 'base_s' among them"),
        (lambda: fit_steps(made(), scale=0.0), "scale must be > 0 and finite, got 0.0"),
        (lambda: fit_steps(made(), overhead_s=-1.0), "overhead_s must be >= 0 and finite, got -1.0"),
        (lambda: fit_steps(made(), hold_out="rows"), "unknown hold_out 'rows'"),
        (
            lambda: fit_steps(dataclasses.replace(made(), groups=()), hold_out="groups"),
            "hold_out must be 'settings' for a table without groups, got 'groups'",
        ),
        (lambda: knee(decode([1, 2, 4], 9)), "that only decode must be 4 batches or more in 8 rows, got '3 batches'"),
    ],
)  # fmt: skip
def test_bad_input(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_a_step_that_only_decodes_needs_no_prompt_columns():
    table = StepTable.of([1, 2], [0.01, 0.02], context_tokens=[100, 400])
    assert table.mean_context.tolist() == [100.0, 200.0] and not table.has_prompt.any()
    assert isinstance(table.rows, Rows) and len(padded_rows(table).time_s) == 64
