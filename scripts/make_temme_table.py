"""Write `jaxsim/_temme.py`: the constants of the continuous Erlang evaluation, from 60-digit arithmetic.

Four tables:

`TEMME`   Taylor coefficients of C_k(eta) in Temme's uniform expansion of the incomplete gamma function.
          With mu = rho - 1 and eta^2/2 = mu - ln(1 + mu), sign(eta) = sign(mu) (Temme 1979; DLMF 8.12):
              C_0 = 1/mu - 1/eta,        eta C_k = C_(k-1)' + g_k eta/mu,
          where Gamma*(c) ~ sum_k (-1)^k g_k c^-k is Stirling's series.
`BINET`   J(c) = ln Gamma(c+1) - (c + 1/2) ln c + c - ln(2 pi)/2 = t P(3t - 1), t = 1/(c + 1/2), c >= 1.
`ERFCX`   (1 + 2x) exp(x^2) erfc(x) = P((x - 3)/(x + 3)), x >= 0 (the map of Shepherd and Laframboise 1981).

`NODES`, `WEIGHTS`  Gauss-Legendre rule on [0, 1]; the rules of numpy and scipy are off by 1e-13.

The two P are truncated Chebyshev series, rewritten in powers of their variable. Run from the repository root:

    python scripts/make_temme_table.py
"""

from pathlib import Path

import mpmath as mp
import numpy as np

OUTPUT = Path(__file__).parent.parent / "jaxsim" / "_temme.py"
SMALLEST_SERVERS = 16  # the expansion is used from here on
NUM_NODES = 48
NEGLIGIBLE = mp.mpf(2) ** -58
HEADER = '''"""Constants of the continuous Erlang evaluation; written by `scripts/make_temme_table.py`.

`TEMME[k][n]`: C_k(eta) = sum_n TEMME[k][n] eta^n. A coefficient is listed where it can exceed
2^-58 of the result for some eta <= 0, c >= 16. `BINET`, `ERFCX`: powers of the variables named in the script.
`NODES`, `WEIGHTS`: Gauss-Legendre rule on [0, 1].
"""
'''


def temme_rows(num_rows=16, num_columns=34):
    order = num_columns + 2 * num_rows + 4
    # mu = sum_n alpha_n eta^n solves mu mu' = eta (1 + mu).
    alpha = [mp.mpf(0), mp.mpf(1)]
    for n in range(2, order + 2):
        convolution = mp.fsum(alpha[i] * alpha[n + 1 - i] for i in range(2, n))
        alpha.append((2 * alpha[n - 1] / (n + 1) - convolution) / 2)
    ratio = [mp.mpf(1)]  # eta / mu
    for n in range(1, order):
        ratio.append(-mp.fsum(alpha[i + 1] * ratio[n - i] for i in range(1, n + 1)))
    log_stirling = [mp.mpf(0)] * (num_rows + 2)
    for m in range(1, num_rows // 2 + 1):
        log_stirling[2 * m - 1] = mp.bernoulli(2 * m) / (2 * m * (2 * m - 1))
    stirling = [mp.mpf(1)]
    for n in range(1, num_rows + 1):
        stirling.append(mp.fsum(i * log_stirling[i] * stirling[n - i] for i in range(1, n + 1)) / n)
    rows = [ratio[1:]]
    for k in range(1, num_rows):
        g = (-1) ** k * stirling[k]
        previous = rows[-1]
        rows.append([(n + 2) * previous[n + 2] + g * ratio[n + 1] for n in range(len(previous) - 2)])
    return [row[:num_columns] for row in rows]


def trim(rows):
    """Drop what stays below `NEGLIGIBLE`: the term k, n enters as c^-k eta^n exp(-c eta^2/2)."""
    kept = []
    for k, row in enumerate(rows):
        last = -1
        for n, d in enumerate(row):
            eta = mp.sqrt(mp.mpf(n) / SMALLEST_SERVERS)
            peak = eta**n * mp.exp(-SMALLEST_SERVERS * eta**2 / 2) if n else 1
            if abs(d) * mp.mpf(SMALLEST_SERVERS) ** -k * peak > NEGLIGIBLE:
                last = n
        if last < 0:
            break
        kept.append(row[: last + 1])
    return kept


def chebyshev_powers(f, degree, samples=120):
    """Power coefficients in x of the Chebyshev series of f on [-1, 1], cut at `degree`."""
    nodes = [mp.pi * (k + mp.mpf(1) / 2) / samples for k in range(samples)]
    values = [f(mp.cos(theta)) for theta in nodes]
    series = []
    for j in range(degree + 1):
        terms = (value * mp.cos(j * theta) for value, theta in zip(values, nodes, strict=True))
        series.append(2 * mp.fsum(terms) / samples)
    series[0] /= 2
    lower, upper = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    powers = [mp.mpf(0)] * (degree + 1)
    for coefficient in series:
        for n, t in enumerate(lower):
            powers[n] += coefficient * t
        following = [mp.mpf(0)] + [2 * t for t in upper]
        for n, t in enumerate(lower):
            following[n] -= t
        lower, upper = upper, following
    return powers


def binet(x):
    t = (x + 1) / 3
    c = 1 / t - mp.mpf(1) / 2
    return (mp.loggamma(c + 1) - (c + mp.mpf(1) / 2) * mp.log(c) + c - mp.log(2 * mp.pi) / 2) / t


def scaled_erfc(s):
    x = 3 * (1 + s) / (1 - s)
    if x < 20:
        return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)
    marks = [0, 1, 5, 20, 60, 160]
    return (1 + 2 * x) / (x * mp.sqrt(mp.pi)) * mp.quad(lambda u: mp.exp(-((u / (2 * x)) ** 2) - u), marks)


def gauss_legendre(count):
    nodes, weights = [], []
    for start in np.polynomial.legendre.leggauss(count)[0]:
        x = mp.findroot(lambda t: mp.legendre(count, t), mp.mpf(float(start)))
        slope = count * (x * mp.legendre(count, x) - mp.legendre(count - 1, x)) / (x * x - 1)
        nodes.append((1 + x) / 2)
        weights.append(1 / ((1 - x * x) * slope**2))
    return nodes, weights


def table(name, numbers):
    return [f"{name}: tuple[float, ...] = (", *(f"    {float(number)!r}," for number in numbers), ")"]


def main():
    mp.mp.dps = 60
    text = [HEADER]
    text.append("TEMME: tuple[tuple[float, ...], ...] = (")
    for row in trim(temme_rows()):
        text += ["    (", *(f"        {float(d)!r}," for d in row), "    ),"]
    text.append(")")
    text += table("BINET", chebyshev_powers(binet, 18)) + table("ERFCX", chebyshev_powers(scaled_erfc, 25))
    nodes, weights = gauss_legendre(NUM_NODES)
    text += table("NODES", nodes) + table("WEIGHTS", weights)
    OUTPUT.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
