"""RateProfile and tables of a day: what they say, what they refuse, and how a stretch of a day is cut out."""

import gzip

import numpy as np
import pytest

import jaxsim
from jaxsim.workload import Workload
from optim.demand import RateProfile, resampled
from optim.demand_table import read_day_table, read_demand

DAY = "hour,rate_rps,usd_per_kwh,g_co2_per_kwh,comment\n0,2,0.1,300,a\n8,6,0.2,200,b\n16,4,-0.01,100,c\n"


def write(folder, text, name="day.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_with_prices(tmp_path):
    demand, table = read_demand(write(tmp_path, DAY))
    assert demand.start_s == (0.0, 28_800.0, 57_600.0) and demand.end_s == 86_400.0 and demand.repeat
    assert demand.rate == (2.0, 6.0, 4.0) and demand.mean_rate == 4.0
    assert table.columns["usd_per_kwh"].tolist() == [0.1, 0.2, -0.01]
    assert table.columns["kg_co2_per_kwh"] == pytest.approx([0.3, 0.2, 0.1])
    assert demand.notes == ("day.csv: columns not used: comment",)
    assert demand.requests == 4.0 * 86_400.0
    assert demand.scaled_to(8.0).rate == (4.0, 12.0, 8.0)


def test_clock_times_and_seconds_say_the_same(tmp_path):
    by_clock, _ = read_demand(write(tmp_path, "time,rps\n06:00,1\n06:30,2\n07:00,3\n"))
    by_second, _ = read_demand(write(tmp_path, "time_s,rate\n21600,1\n23400,2\n25200,3\n", "s.csv"))
    assert by_clock.start_s == by_second.start_s == (0.0, 1800.0, 3600.0)
    assert [by_clock.clock(k) for k in range(3)] == ["06:00", "06:30", "07:00"]
    assert by_clock.named([0, 2]) == "the intervals from 06:00, 07:00"
    assert by_clock.named([1]) == "the interval from 06:30"


def test_a_gzipped_table_with_names_of_its_own(tmp_path):
    path = tmp_path / "day.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("kind,t,load\na,0,1\nb,0,9\na,60,2\nb,60,9\n")
    demand, _ = read_demand(path, columns={"time_s": "t", "rate": "load"}, only={"kind": "a"}, repeat=False)
    assert (demand.rate, demand.end_s, demand.repeat) == ((1.0, 2.0), 120.0, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hour,rate\n0,1\n1,x\n", "day.csv, line 3, column 'rate': expected a number, got 'x'"),
        ("hour,rate\n0:99x,1\n1,2\n", "column 'hour': expected hours or a clock time such as 08:30"),
        ("hour,rate\n0,1\n1,\n2,3\n", "1 of 3 windows has no rate"),
        ("hour,rate\n0,1\n1,0\n2,3\n", "windows may be missing"),
        ("hour,rate\n0,1\n2,2\n1,3\n", "must be > 0"),
        ("hour,rate\n0,1\n1,-2\n", "rate must be >= 0"),
        ("hour,rate,rps\n0,1,1\n1,2,2\n", "more than one column 'rate' or 'rps'"),
        ("hour,usd_per_kwh,usd_per_mwh\n0,1,1\n1,2,2\n", "usd_per_kwh and usd_per_mwh say the same"),
        ("when,rate\n0,1\n1,2\n", "no time column"),
        ("hour,load\n0,1\n1,2\n", "no column with a value"),
        ("hour,usd_per_kwh\n0,1\n1,2\n", "no column 'rate' or"),
        ("hour,rate\n", "no rows"),
        ("hour,rate\n0,1\n", "the number of windows must be >= 2"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        read_demand(write(tmp_path, text))


def test_idle_hours_are_kept_where_they_are_said_to_be(tmp_path):
    assert read_demand(write(tmp_path, "hour,rate\n0,1\n1,0\n2,3\n"), zeros="idle")[0].rate == (1.0, 0.0, 3.0)
    with pytest.raises(FileNotFoundError, match="check the path"):
        read_day_table(tmp_path / "no.csv")
    with pytest.raises(ValueError, match="unknown name in columns 'rates'"):
        read_day_table(write(tmp_path, DAY), columns={"rates": "x"})


def test_a_trace_is_counted_in_intervals():
    arrivals = [0.0, 1.0, 9.0, 10.0, 11.0, 12.0, 25.0]
    trace = Workload.from_lengths([10.0] * 7, [2.0] * 7, arrival_s=arrivals, name="seven")
    demand = RateProfile.from_trace(trace, 10.0, repeat=False)
    assert demand.rate == (0.3, 0.3) and demand.end_s == 20.0
    assert demand.notes == ("1 of 7 arrivals are after the last whole interval of 10 s: not in the demand",)
    with pytest.raises(ValueError, match=r"interval_s must be at most half of the trace's 25 s, got 13.0"):
        RateProfile.from_trace(trace, 13.0)
    with pytest.raises(ValueError, match="needs a workload with arrival times; workload 'lmsys' has none"):
        RateProfile.from_trace(jaxsim.workload("lmsys"), 60.0)


def test_a_cosine_has_its_extremes_where_they_are_asked_for():
    demand = RateProfile.daily(peak=10.0, trough=2.0, peak_hour=14.5, interval_s=3600.0)
    assert demand.num_intervals == 24 and demand.rates.argmax() == 14 and demand.rates.argmin() == 2
    assert demand.rates.max() == 10.0 and demand.rates.min() == pytest.approx(2.0)
    assert demand.mean_rate == pytest.approx(6.0)
    for bad, says in (
        ({"trough": 11.0}, "from 0 to the peak"),
        ({"peak_hour": 24.0}, r"in \[0, 24\)"),
        ({"interval_s": 5000.0}, "without a rest"),
    ):
        with pytest.raises(ValueError, match=says):
            RateProfile.daily(**{"peak": 10.0, "trough": 2.0, "peak_hour": 1.0, "interval_s": 3600.0} | bad)


def test_a_stretch_of_a_day_goes_past_midnight_where_it_repeats():
    day = RateProfile.of([1.0, 5.0, 3.0], 100.0)
    cut = day.stretch(250.0, 450.0)
    assert cut.start_s == (0.0, 50.0, 150.0) and cut.rate == (3.0, 1.0, 5.0) and cut.end_s == 200.0
    before = day.stretch(-30.0, 40.0)
    assert before.rate == (3.0, 1.0) and before.start_s == (0.0, 30.0)
    once = RateProfile.of([1.0, 5.0, 3.0], 100.0, repeat=False).stretch(-30.0, 350.0)
    assert [once.rate[0], *dict.fromkeys(once.rate[1:])] == [1.0, 1.0, 5.0, 3.0]
    with pytest.raises(ValueError, match="first_s"):
        day.stretch(-301.0, 10.0)


def test_prices_are_averaged_over_other_intervals():
    hours = np.arange(5.0)
    assert resampled(hours, np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.5, 4.0])) == pytest.approx([4 / 3, 3.2])
    with pytest.raises(ValueError, match="the time that prices cover"):
        resampled(hours, np.ones(4), np.array([0.0, 5.0]))
