"""Write `tests/data/erlang_reference.csv`: Erlang B and C for real servers, from 40-digit quadrature.

Both formulas follow from two integrals that hold for every real number of servers c > 0 (Jagerman 1974):

    1/B = r = int_0^inf e^-y (1 + y/a)^c dy,        dr/dc = int_0^inf e^-y (1 + y/a)^c ln(1 + y/a) dy.

Every row is evaluated at exactly the float64 inputs that it prints, so the table measures the error of
an implementation and not the rounding of its arguments. Run from the repository root:

    python scripts/make_erlang_reference.py
"""

import csv
from pathlib import Path

import mpmath as mp
import numpy as np

OUTPUT = Path(__file__).parent.parent / "tests" / "data" / "erlang_reference.csv"
SERVERS = [0.001, 0.1, 0.5, 0.999, 1.0, 1.5, 2.0, 2.7, 4.0, 7.3, 10.0, 13.0, 15.0, np.nextafter(16.0, 0.0)]
SERVERS += [16.0, 16.0001, 16.5, 20.0, 31.9, 32.0, 50.0, 100.5, 128.0, 300.0, 777.25, 1024.0, 4096.0]
SERVERS += [10_000.0, 123_456.7, 1e6]
UTILIZATIONS = [1e-6, 1e-4, 0.01, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99]
UTILIZATIONS += [
    0.995,
    0.999,
    0.9999,
    1 - 1e-5,
    1 - 1e-6,
    1 - 1e-7,
    1 - 1e-9,
    1.0,
    1.001,
    1.05,
    1.3,
    2.0,
    10.0,
]
COLUMNS = ["num_servers", "offered_load", "log_erlang_c", "log_erlang_c_dc", "log_erlang_c_da"]
COLUMNS += ["log_erlang_b", "log_erlang_b_dc", "log_erlang_b_da"]
DIGITS = 40
DROP = 110  # e-folds below the peak where the integrals are cut: e^-110 is below 10^-47


def erlang_integrals(c, a):
    """Logarithm of r and the ratio (dr/dc) / r."""
    peak = max(c - a, mp.mpf(0))
    top = -peak + c * mp.log1p(peak / a)
    width = mp.sqrt(c) + 1
    exponent = lambda y: -y + c * mp.log1p(y / a) - top  # noqa: E731

    def edge(direction):
        step = width
        while direction > 0 or step < peak:
            if exponent(peak + direction * step) < -DROP:
                return peak + direction * step
            step *= 2
        return mp.mpf(0)

    low, high = edge(-1), edge(1)
    marks = {low, peak, high, *(peak + k * (high - peak) / 8 for k in range(1, 8))}
    marks |= {low + k * (peak - low) / 6 for k in range(1, 6)}
    # (1 + y/a)^c has its singularity at y = -a: resolve it where the light load brings it near.
    marks |= {m for m in (a * mp.mpf(8) ** k for k in range(0, 9)) if low < m < high}
    marks = sorted(marks)
    r = mp.quad(lambda y: mp.exp(exponent(y)), marks)
    slope = mp.quad(lambda y: mp.exp(exponent(y)) * mp.log1p(y / a), marks)
    return top + mp.log(r), slope / r


def row(num_servers, offered_load):
    c, a = mp.mpf(float(num_servers)), mp.mpf(float(offered_load))
    log_r, log_r_dc = erlang_integrals(c, a)
    r = mp.exp(log_r)
    log_r_da = -(c / a - 1 + 1 / r)
    log_c = log_c_dc = log_c_da = mp.mpf(0)
    if a <= c:
        waiting = 1 / (a / c + (1 - a / c) * r)
        log_c = mp.log(waiting)
        log_c_dc = -waiting * (a / c**2 * (r - 1) + (1 - a / c) * r * log_r_dc)
        log_c_da = -waiting * ((1 - r) / c + (1 - a / c) * r * log_r_da)
    values = (log_c, log_c_dc, log_c_da, -log_r, -log_r_dc, -log_r_da)
    return [repr(float(num_servers)), repr(float(offered_load)), *(mp.nstr(v, 22) for v in values)]


def main():
    mp.mp.dps = DIGITS
    with OUTPUT.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for c in SERVERS:
            for utilization in UTILIZATIONS:
                writer.writerow(row(c, c * utilization))
            file.flush()


if __name__ == "__main__":
    main()
