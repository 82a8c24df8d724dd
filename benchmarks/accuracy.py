"""Error of the analytical models against the simulator, on a fixed design of some 240 fleets under load.

Run ``python benchmarks/accuracy.py`` (at most 20 minutes on two CPUs that do nothing else; ``--json`` for one object a
line, ``--quick`` for seconds). ``--save FILE`` keeps each simulated point as a line of JSON as soon as it is known, and
takes up again what a stopped run left; ``--sims FILE`` judges the models by such a file and simulates nothing.
``--markdown`` writes the document that quotes the figures.

What is compared, and how it is judged, is in the document and in `_accuracy_design` (the points), `_accuracy_sims` (the
simulator), `_accuracy_model` (the models) and `_accuracy_table` (the errors).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import jax
from _accuracy_design import Point, cases, points, quick_points
from _accuracy_model import said
from _accuracy_sims import QUICK, Effort, Simulated, checked, read, simulate, write
from _accuracy_table import Judged, judge, lines, rows, segments
from _accuracy_view import markdown, show
from _report import print_json, progress

DOCUMENT = Path(__file__).parent.parent / "docs" / "accuracy-latency.md"


def simulated(chosen: list[Point], effort: Effort, save: Path | None) -> Iterator[Simulated]:
    """Every point, those that are saved already as they are."""
    saved = {row.point: row for row in read(save)} if save is not None and save.exists() else {}
    yield from (saved[point] for point in chosen if point in saved)
    missing = [point for point in chosen if point not in saved]
    begun = perf_counter()
    for number, case in enumerate(cases(missing), 1):
        row = simulate(case, effort)
        if save is not None:
            write(row, save)
        progress(f"{number}/{len(missing)} after {perf_counter() - begun:.0f} s: {case.point.label}")
        yield row


def judged(found: list[Simulated]) -> list[Judged]:
    """Both models on what was simulated."""
    pairs = list(checked(found, cases([row.point for row in found])))
    made = [case for _, case in pairs]
    return judge(found, *(said(model, found, made) for model in ("step", "kimura")))


def main() -> None:
    """Simulate, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, target, ok")
    parser.add_argument("--quick", action="store_true", help="a few points in seconds: a smoke test")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep simulated points, and use those kept before")
    parser.add_argument("--sims", type=Path, metavar="FILE", help="judge by the simulated points of a file")
    parser.add_argument(
        "--markdown",
        type=Path,
        nargs="?",
        const=DOCUMENT,
        metavar="FILE",
        help="write the document, docs/accuracy-latency.md unless told",
    )
    options = parser.parse_args()
    if options.sims is not None and (options.quick or options.save is not None):
        parser.error("--sims simulates nothing: it goes without --quick and --save")
    if options.markdown is not None and options.quick:
        parser.error("--markdown writes what all points say: it goes without --quick")
    jax.config.update("jax_enable_x64", True)
    if options.sims is not None:
        found = read(options.sims)
    else:
        chosen, effort = (quick_points(), QUICK) if options.quick else (points(), Effort())
        found = sorted(simulated(chosen, effort, options.save), key=lambda row: row.point.number)
    results = judged(found)
    whole = {row.point for row in found} >= set(points())
    if options.json:
        print_json(rows(lines(results, segments()), aimed=whole))
    elif options.markdown is None:
        show(results)
    if options.markdown is not None:
        options.markdown.write_text(markdown(results, found), encoding="utf-8")


if __name__ == "__main__":
    main()
