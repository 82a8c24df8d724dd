"""Reported cases of practice that a fit must get right.

Inputs and expectations are those of `cases/cases_public.jsonl`; each test's name has the case's.
"""
# ruff: noqa: N802  the cases' names are in capitals

import pytest

from jaxsim.fit import two_point
from jaxsim.physics import step_base_s
from jaxsim.queueing import little_law_concurrency
from jaxsim.units import ms_from_s, s_from_ms


def expected(value):
    """An expected figure with its tolerance."""
    return pytest.approx(value["value"], rel=value["rel_tol"])


def pairs(case):
    """The rows of each length class: one request at a time, and the most at once."""
    rows = case["inputs"]["rows"]
    for isl in sorted({row["isl"] for row in rows}):
        yield sorted((row for row in rows if row["isl"] == isl), key=lambda row: row["conc"])


def test_case_F1_a_step_time_for_each_length_class(cases):
    """W and H through TPOT at two concurrencies, with H by sequence or by token: the same at that context."""
    case = cases["F1"]
    for name, (alone, many) in zip(("short", "1k"), pairs(case), strict=True):
        points = (alone["conc"], s_from_ms(alone["tpot_ms"]), many["conc"], s_from_ms(many["tpot_ms"]))
        law = two_point(*points)
        assert ms_from_s(step_base_s(law)) == expected(case["expected"][f"W_ms_{name}"])
        assert ms_from_s(law.per_sequence_s) == expected(case["expected"][f"H_ms_per_seq_{name}"])
        context = alone["isl"] + 0.5 * alone["osl"]
        by_token = two_point(*points, mean_context=context)
        assert by_token.per_token_s * context == pytest.approx(law.per_sequence_s, rel=1e-12)


def test_case_F1_littles_law_gives_the_rate(cases):
    """Concurrency over E2E is the rate that was reported."""
    case = cases["F1"]
    for (alone, many), rate in zip(pairs(case), case["expected"]["little_law_rps"], strict=True):
        assert many["conc"] / s_from_ms(many["e2el_ms"]) == expected(rate)
        for row in (alone, many):
            flying = little_law_concurrency(row["rps"], s_from_ms(row["e2el_ms"]))
            assert float(flying) == pytest.approx(row["conc"], rel=0.005)
