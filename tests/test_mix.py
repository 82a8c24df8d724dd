"""Several streams in one workload."""

import numpy as np
import pytest

import jaxsim
from optim.build import plan_request
from optim.config import ConfigError, read_settings

MIX = """
[workload]
[[workload.mix]]
name = "mooncake-conversation"
rate = 1.0
[[workload.mix]]
name = "azure-conversation"
rate = 3.0
[slo]
ttft_p99_ms = 500
[fleet]
profiles = ["h100-80gb"]
"""


@pytest.fixture
def request_of(tmp_path):
    def read(text, **flags):
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        return plan_request(read_settings(tmp_path / "mine.toml", flags))

    return read


def test_means_are_those_of_the_streams_by_their_rates():
    parts = [jaxsim.workload(name) for name in ("mooncake-conversation", "azure-conversation")]
    mixed = jaxsim.mix(parts, [1.0, 3.0])
    for column in ("input_tokens", "output_tokens"):
        means = [float(one.mean(getattr(one, column))) for one in parts]
        assert float(mixed.mean(getattr(mixed, column))) == pytest.approx(0.25 * means[0] + 0.75 * means[1], rel=1e-12)
    assert mixed.rate == 4.0
    assert mixed.share_above(20_000) == pytest.approx(0.25 * parts[0].share_above(20_000), rel=1e-12)


def test_a_mix_of_one_is_that_one():
    alone = jaxsim.workload("sharegpt")
    mixed = jaxsim.mix([alone], [7.0])
    np.testing.assert_array_equal(mixed.input_tokens, alone.input_tokens)
    np.testing.assert_allclose(mixed.weight, alone.weight, rtol=1e-15)


def test_arrivals_of_traces_are_left_out_and_it_is_said():
    timed = jaxsim.Workload.from_lengths([10, 20], [5, 5], arrival_s=[0.0, 1.0], name="timed")
    mixed = jaxsim.mix([timed, jaxsim.workload("sharegpt")], [1.0, 1.0])
    assert mixed.arrival_s is None
    assert any("arrival times" in note and "timed" in note for note in mixed.notes)


@pytest.mark.parametrize("rates", [[], [1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_bad_rates_are_refused(rates):
    with pytest.raises(ValueError, match="rates must be"):
        jaxsim.mix([jaxsim.workload("sharegpt")] * 2, rates)


def test_a_plan_file_mixes_streams(request_of):
    asked = request_of(MIX)
    assert asked.problem.rate == 4.0
    assert asked.inputs["workload"].value == "mooncake-conversation + azure-conversation"
    assert any("25.000% mooncake-conversation at 1 req/s" in note for note in asked.problem.workload.notes)


def test_the_rate_of_the_table_scales_all_streams(request_of):
    own, scaled = request_of(MIX), request_of(MIX, **{"workload.rate": 40.0})
    assert scaled.problem.rate == 40.0
    np.testing.assert_array_equal(scaled.problem.workload.weight, own.problem.workload.weight)


def test_another_workload_on_the_command_line_takes_the_place_of_the_mix(request_of):
    assert request_of(MIX, **{"workload.name": "sharegpt", "workload.rate": 5.0}).inputs["workload"].value == "sharegpt"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("[workload]\n", '[workload]\nname = "sharegpt"\n', "workload.name belongs in a row of"),
        ('name = "azure-conversation"', 'name = "azur"', r"workload.mix\[1\].name: unknown"),
        ('name = "azure-conversation"', 'trace = "gone.csv"', r"workload.mix\[1\].trace"),
        ('name = "azure-conversation"\n', "", r"workload.mix\[1\] must be exactly one of"),
        ('name = "azure-conversation"', 'cdf = "x.json"', r"workload.mix\[1\].output_share is required"),
        ('"mooncake-conversation"\nrate = 1.0', '"sharegpt"', r"workload.mix\[0\].rate is required"),
        ("rate = 3.0", "rate = 0.0", r"workload.mix\[1\].rate must be > 0"),
        ("rate = 3.0", "ratio = 3.0", "unknown key 'ratio'"),
    ],
)
def test_bad_mixes_say_what_where_and_why(request_of, old, new, found):
    assert old in MIX
    with pytest.raises(ConfigError, match=found):
        request_of(MIX.replace(old, new))
