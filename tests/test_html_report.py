"""report.html: complete in itself, escaped, and the same figures as the JSON beside it."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxsim.profiles import profile
from optim.cli import app
from optim.documents import plain
from optim.html_charts import as_json, estimate_words, figure, gaps, load_chart, pareto_chart
from optim.html_grid import whatif_page
from optim.html_page import Chart, Page, Section, Words, render
from optim.html_plan import plan_page
from optim.profile_file import profile_toml
from optim.words import number, usd

EVIL = "<img src=x onerror=alert(1)> & \"quoted\" 'name'"
FETCHING = {"src", "srcset", "poster", "data", "background", "action", "formaction", "ping"}


class Reader(HTMLParser):
    """Tags, attributes, what stands in scripts and styles, and the text of everything else."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.styles, self.text, self.open = [], [], {}, [], [], []
        self.feed(text)
        self.close()
        self.words = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag in ("script", "style"):
            self.open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.open.pop()

    def handle_data(self, data):
        if not self.open:
            self.text.append(data)
        elif self.open[-1][0] == "style":
            self.styles.append(data)
        else:
            self.scripts[self.open[-1][1] or len(self.scripts)] = data

    @property
    def figures(self):
        def refuse(token):
            raise AssertionError(f"{token} is not JSON")

        return json.loads(self.scripts["figures"], parse_constant=refuse)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 4), result.output
    return result


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """A trace and a profile whose names are markup."""
    folder = tmp_path_factory.mktemp("names")
    trace, engine = folder / f"{EVIL}.csv", folder / "profile.toml"
    rng = np.random.default_rng(0)
    rows = np.stack([rng.integers(16, 900, 300), rng.integers(2, 200, 300)], axis=1)
    lines = "\n".join(f"{k},{a},{b}" for k, (a, b) in enumerate(rows.tolist()))
    trace.write_text(f"timestamp,input_tokens,output_tokens\n{lines}\n", encoding="utf-8")
    engine.write_text(profile_toml(replace(profile("h100-80gb"), name=EVIL, source=f"measured by {EVIL}")))
    return trace, engine


@pytest.fixture(scope="module")
def planned(names, tmp_path_factory):
    """A plan's document, its page and what the terminal said."""
    trace, engine = names
    folder = tmp_path_factory.mktemp("out")
    asked = (
        "--rate",
        50,
        "--ttft-p99-ms",
        500,
        "--tpot-p99-ms",
        60,
        "--max-pools",
        1,
        "--max-context",
        2048,
        "--model",
        "kimura",
    )
    said = run("plan", "--trace", trace, "--profile", engine, *asked, "--precision", 0.3, "--out", folder)
    document = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return document, Reader((folder / "report.html").read_text(encoding="utf-8")), said.stdout, folder


@pytest.fixture(scope="module")
def simulated(names, tmp_path_factory):
    """The same of a simulation in overload."""
    trace, engine = names
    folder = tmp_path_factory.mktemp("simulated")
    file = folder / "fleet.toml"
    file.write_text(
        f"[workload]\ntrace = {json.dumps(str(trace))}\nrate = 3000.0\n[slo]\nttft_p99_ms = 500\n[[fleet.pools]]\n"
        f"profile = {json.dumps(str(engine))}\nreplicas = 1\nmax_context = 2048\n[fleet]\nmodel = 'kimura'\n",
        encoding="utf-8",
    )
    run("simulate", file, "--requests", 4000, "--replications", 4, "--out", folder)
    document = json.loads((folder / "simulation.json").read_text(encoding="utf-8"))
    return document, Reader((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(params=["planned", "simulated"])
def page(request):
    return request.getfixturevalue(request.param)[:2]


def test_nothing_on_a_page_asks_a_server(page):
    _, read = page
    assert not {"link", "iframe", "object", "embed", "img", "base", "audio", "video", "form"} & set(read.tags)
    assert not [a for a in read.attributes if a[1] in FETCHING or a[1].startswith("on")]
    assert all(a[2].startswith("#") for a in read.attributes if a[1] == "href")
    assert not re.search(r"@import|url\(", "".join(read.styles), re.IGNORECASE)
    policy = next(a[2] for a in read.attributes if a[1] == "content" and "default-src" in a[2])
    assert "default-src 'none'" in policy and "http" not in policy


def test_the_library_is_in_the_page_once(page):
    _, read = page
    assert sum(len(script) > 1_000_000 for script in read.scripts.values()) == 1


def test_names_that_are_markup_stay_text(page):
    document, read = page
    assert document["workload"]["name"].startswith("<img")
    assert document["design"]["pools"][0]["profile"] == EVIL
    assert "img" not in read.tags
    assert EVIL in read.words
    assert not any("<" in text for text in strings(read.figures) if "<br>" not in text and "<extra>" not in text)
    for text in strings(read.figures):
        assert "<img" not in text


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def test_every_input_stands_there_with_its_source(page):
    document, read = page
    assert document["inputs"]
    for key, entry in document["inputs"].items():
        assert key in read.words
        assert entry["source"] in read.words
    assert document["workload"]["source"] in read.words
    assert all(profile["source"] in read.words for profile in document["profiles"])
    for warning in document["warnings"]:
        assert warning in read.words or warning.startswith("model, pool")


def test_a_page_says_how_to_have_it_again(page):
    document, read = page
    assert document["version"] in read.words and f"Random seed {document['seed']}" in read.words
    assert "fleetgrad plan --trace" in read.words or "fleetgrad simulate" in read.words
    assert ("id", "reproduce") in [a[1:] for a in read.attributes if a[0] == "section"]


def test_every_section_has_an_anchor_that_the_contents_name(page):
    _, read = page
    anchors = [a[2] for a in read.attributes if a[0] == "section" and a[1] == "id"]
    assert len(set(anchors)) == len(anchors) >= 6
    named = [a[2] for a in read.attributes if a[1] == "href"]
    assert {f"#{anchor}" for anchor in anchors} == set(named)


def test_the_figures_of_a_plan_are_those_of_its_json(planned):
    document, read, said, folder = planned
    assert said.rstrip().endswith(f"Report: {folder / 'report.html'}")
    assert " ".join(said.split())[:40] in read.words
    found, analytic = document["verification"], document["analytic"]
    for name in ("ttft_p99_ms", "tpot_p99_ms"):
        assert estimate_words(found[name]) in read.words
        assert number(analytic[name]) in read.words
    assert f"{usd(document['cost_usd_per_hour'])}/h" in read.words
    assert number(document["load"]["headroom"]["due_rate_rps"], 4) in read.words
    for knob in document["knobs"]:
        assert knob["turn"] in read.words
    figures = read.figures
    drawn = figures["load-ttft"]["data"][0]
    points = document["load"]["points"]
    assert drawn["x"] == [point["rate_rps"] for point in points]
    assert drawn["y"] == gaps(point["ttft_p99_ms"] for point in points)
    assert figures["load-ttft"]["data"][1]["y"] == [found["ttft_p99_ms"]["value"]]
    series = document["time_series"]["pools"][0]
    assert figures["series-running"]["data"][0]["y"] == series["mean_active"]
    assert figures["series-waiting"]["data"][0]["y"] == series["mean_queued"]
    own = next(point for point in points if point["rate_rps"] == document["inputs"]["rate_rps"]["value"])
    assert own["ttft_p99_ms"] == pytest.approx(analytic["ttft_p99_ms"], rel=1e-9)
    assert set(figures) == {
        "front",
        "load-ttft",
        "load-tpot",
        "tail-ttft",
        "tail-tpot",
        "series-running",
        "series-waiting",
    }


def test_overload_is_a_gap_and_is_said(planned, simulated):
    document, read, *_ = planned
    points = document["load"]["points"]
    over = [point["overloaded"] for point in points]
    assert any(over) and not all(over)
    for name in ("ttft", "tpot"):
        drawn = read.figures[f"load-{name}"]["data"][0]["y"]
        assert [value is None for value in drawn] == over
        assert all(point[f"{name}_p99_ms"] == "inf" for point in points if point["overloaded"])
    assert "is overloaded: there is no P99" in read.words
    document, read = simulated
    assert document["verification"]["overloaded"] and document["analytic"]["ttft_p99_ms"] == "inf"
    assert "OVERLOADED" in read.words and "overloaded" in read.words
    assert read.figures


def test_the_distributions_fall_and_cross_one_percent_at_the_p99(planned):
    document, read, *_ = planned
    for name in ("ttft", "tpot"):
        simulated, modelled = read.figures[f"tail-{name}"]["data"][:2]
        for trace in (simulated, modelled):
            known = [v for v in trace["y"] if v is not None]
            assert known == sorted(known, reverse=True) and 0 < known[-1] <= known[0] <= 1
        p99 = document["verification"][f"{name}_p99_ms"]["value"]
        longer = [t for t, v in zip(simulated["x"], simulated["y"], strict=True) if v is not None and v > 0.01]
        step = simulated["x"][1] / simulated["x"][0]
        assert max(longer) == pytest.approx(p99, rel=step - 1 + 0.02)


def test_a_chart_takes_no_number_that_json_lacks():
    bad = Chart("c", "c", {"data": [{"y": [math.nan]}], "layout": {}}, "")
    with pytest.raises(ValueError, match="JSON"):
        render(Page("k", "t", "v", [Section("a", "A", [bad])]))
    assert gaps([1.0, math.inf, None, "inf", math.nan, "2"]) == [1.0, None, None, None, None, 2.0]


def test_names_of_charts_and_sections_are_their_own():
    with pytest.raises(ValueError, match="names of their own"):
        render(Page("k", "t", "v", [Section("a", "A", []), Section("a", "B", [])]))


def test_a_page_without_charts_carries_no_library():
    text = render(Page("k", EVIL, EVIL, [Section("a", EVIL, [Words([EVIL])])]))
    assert len(text) < 20_000
    read = Reader(text)
    assert "img" not in read.tags and read.words.count(EVIL) >= 3


def test_a_script_cannot_be_ended_by_its_data():
    made = as_json(figure([], x="</script><script>alert(1)</script>", y="y"))
    text = render(Page("k", "t", "v", [Section("a", "A", [Chart("c", "c", made, "")])]))
    read = Reader(text)
    assert read.figures["c"]["layout"]["xaxis"]["title"]["text"] == "</script><script>alert(1)</script>"
    assert len(read.scripts) == 3


def test_a_sweep_hovers_with_what_each_design_is():
    pool = {"profile": "a<b", "replicas": 2, "upper_tokens": 4096.0}
    point = {"design": {"pools": [pool]}, "cost_usd_per_hour": 4.0, "ttft_p99_ms": 80.0, "tpot_p99_ms": 10.0}
    point |= {"utilization": 0.5, "slo_met": True, "dominated": False}
    worse = {**point, "cost_usd_per_hour": 9.0, "ttft_p99_ms": "inf", "dominated": True}
    made = pareto_chart([point, worse], recommended=0, slo_ms=100.0)
    dominated, front, best = made.figure["data"]
    assert front["customdata"][0].startswith("2 x a&lt;b to 4,096 tokens: P99 TPOT 10.0 ms")
    assert (dominated["y"], front["x"], best["y"]) == ([None], [4.0], [80.0])
    assert "1 overloaded" in made.caption


def test_what_cannot_be_is_a_hole_in_the_heat_map():
    entry = {"value": 1, "source": "given"}
    points = [
        {
            "rate_rps": rate,
            "slo_ttft_p99_ms": ttft,
            "slo_tpot_p99_ms": None,
            "feasible": ttft > 10,
            "cost_usd_per_hour": rate if ttft > 10 else None,
            "relaxed_cost_usd_per_hour": rate if ttft > 10 else None,
            "pools": [{"profile": "x", "replicas": 1, "upper_tokens": 100.0}] if ttft > 10 else [],
        }
        for rate in (1.0, 2.0, 3.0)
        for ttft in (10.0, 500.0)
    ]
    document = {"points": points, "inputs": {"rate_rps": entry}, "workload": {"name": "w", "source": "s", "notes": []}}
    document |= {"model": "step", "profiles": [], "warnings": [], "status": "ok", "version": "0"}
    heat = Reader(render(whatif_page(document, command=["fleetgrad", "whatif"]))).figures["grid-0"]["data"][0]
    assert heat["z"] == [[None, None, None], [1.0, 2.0, 3.0]]
    assert heat["customdata"][0][0] == "infeasible"


def test_a_plan_that_cannot_be_says_why_and_what_it_was_asked():
    inputs = {key: {"value": 1.0, "source": f"given by {EVIL}"} for key in ("rate_rps", "ttft_p99_ms", "tpot_p99_ms")}
    document = {"status": "infeasible", "version": "0", "seed": 3, "model": "step", "inputs": inputs, "rounds": []}
    document |= {"reasons": [{"kind": "slo", "text": f"no fleet of {EVIL}"}], "verification": None, "profiles": []}
    document |= {"workload": {"name": EVIL, "source": "s", "notes": []}, "warnings": ["beware"]}
    read = Reader(render(plan_page(document, verdict=f"INFEASIBLE: {EVIL}.", command=["fleetgrad", "plan", EVIL])))
    for words in (f"INFEASIBLE: {EVIL}.", f"no fleet of {EVIL}", "beware", "Random seed 3", f"given by {EVIL}"):
        assert words in read.words
    assert "img" not in read.tags and not read.figures


def test_a_load_without_an_end_has_no_mark_of_it():
    pools = [{"utilization": 0.0, "ttft_p99_ms": 1.0, "tpot_p99_ms": 1.0}]
    point = {"rate_rps": 1.0, "utilization": 0.0, "ttft_p99_ms": 1.0, "tpot_p99_ms": 1.0, "overloaded": False}
    load = {"rate_rps": 1.0, "overload_rate_rps": "inf", "knee_rate_rps": "inf", "headroom": None}
    made = load_chart(plain({**load, "points": [{**point, "pools": pools}]}), "ttft", slo_ms=None, simulated=None)
    assert "overloaded" not in made.caption and "not simulated" in made.caption
    assert [shape["x0"] for shape in made.figure["layout"]["shapes"]] == [1.0]
