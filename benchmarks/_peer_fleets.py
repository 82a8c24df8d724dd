"""What vllm-sr-sim reports of fleets that it plans: its published scenarios, and the same fleets for us.

Source: vLLM Semantic Router, `website/docs/fleet-sim/use-cases.md` (Apache-2.0) at commit 43d0776, scenarios
"Puzzle" 1, 2, 6 and 7. Its P99 TTFT of puzzle 1 is a formula's (P99 wait + mean prefill), of 2 and 6 its simulator's.
Where it gives the total of a fleet only, the pools are as its own sizing rules make them (`sized` is True): summed over
all lengths, as `tests/test_reference.py` checks, where it draws 3,000 samples. The splits of the fleets of P6 follow
from their prices (1.01, 2.21 and 4.02 dollars per hour); its thresholds there are not stated: taken as 4,096 tokens,
the best of its P1 for lmsys and the one that its P3 names for azure.
"""

from __future__ import annotations

from typing import NamedTuple

A100, H100, A10G = "a100-80gb", "h100-80gb", "a10g"

SOURCE = "https://github.com/vllm-project/semantic-router/blob/43d0776c0cdd67f20d2ceb9c37227d83a54f8a60/website/docs/fleet-sim/use-cases.md"


class PeerFleet(NamedTuple):
    """One line of its tables. Pools run from short to long; `peer_ttft_ms` is None where it prints no figure."""

    puzzle: str
    workload: str
    rate: float
    slo_ms: float
    upper_tokens: tuple[float, ...]
    profiles: tuple[str, ...]
    replicas: tuple[int, ...]
    peer_gpus: int
    peer_ttft_ms: tuple[float, ...] | None
    sized: bool = False

    @property
    def pools(self) -> str:
        """In words, such as ``3 A100 to 4,096 + 5 A100 to 65,536``."""
        short = {A100: "A100", H100: "H100", A10G: "A10G"}
        parts = zip(self.replicas, self.profiles, self.upper_tokens, strict=True)
        return " + ".join(f"{n} {short[name]} to {upper:,.0f}" for n, name, upper in parts)


def _lmsys(threshold: float, short: int, long: int, ttft_ms: tuple[float, float]) -> PeerFleet:
    return PeerFleet(
        "P1", "lmsys", 100.0, 500.0, (threshold, 65536.0), (A100, A100), (short, long), short + long, ttft_ms
    )


FLEETS = (
    PeerFleet("P1", "lmsys", 100.0, 500.0, (65536.0,), (A100,), (14,), 14, None),
    _lmsys(512.0, 2, 13, (9.0, 25.0)),
    _lmsys(1024.0, 2, 10, (10.0, 36.0)),
    _lmsys(2048.0, 2, 7, (12.0, 63.0)),
    _lmsys(4096.0, 3, 5, (13.0, 108.0)),
    _lmsys(8192.0, 4, 4, (14.0, 212.0)),
    _lmsys(12288.0, 5, 3, (14.0, 319.0)),
    PeerFleet("P1", "azure", 200.0, 500.0, (8192.0,), (A100,), (24,), 24, (26.0,)),
    PeerFleet("P1", "azure", 200.0, 500.0, (3072.0, 8192.0), (A100, A100), (7, 16), 23, None, sized=True),
    PeerFleet(
        "P1", "agent", 200.0, 500.0, (16384.0, 65536.0), (A100, A100), (162, 264), 416, (69.0, 339.0), sized=True
    ),
    PeerFleet("P1", "agent", 200.0, 500.0, (32768.0, 65536.0), (A100, A100), (351, 81), 418, (86.0, 593.0), sized=True),
    PeerFleet("P2", "agent", 20.0, 1000.0, (65536.0,), (H100,), (24,), 24, (1052.0,)),
    PeerFleet("P2", "agent", 20.0, 1000.0, (4096.0, 65536.0), (H100, H100), (2, 23), 25, (17.0, 147.0)),
    PeerFleet("P6", "azure", 100.0, 500.0, (4096.0, 8192.0), (A10G, H100), (8, 4), 12, (155.0, 30.0)),
    PeerFleet("P6", "lmsys", 100.0, 500.0, (4096.0, 65536.0), (A100, A100), (3, 5), 8, (43.0, 2822.0)),
    PeerFleet("P6", "lmsys", 100.0, 500.0, (4096.0, 65536.0), (A10G, H100), (4, 3), 7, (129.0, 181.0)),
    PeerFleet("P6", "lmsys", 100.0, 500.0, (4096.0, 65536.0), (A10G, A100), (4, 5), 9, (129.0, 2822.0)),
)


class PeerSplit(NamedTuple):
    """One line of P7: prefill and decode apart, azure at 100 requests/s."""

    prefill: str
    decode: str
    prefill_replicas: int
    decode_replicas: int
    ttft_ms: float
    tpot_ms: float
    kusd_per_year: float


SPLITS = (
    PeerSplit(H100, A100, 1, 6, 162.0, 91.0, 151.0),
    PeerSplit(H100, H100, 1, 3, 162.0, 45.0, 141.0),
    PeerSplit(A100, H100, 1, 3, 492.0, 45.0, 125.0),
)
SPLIT_RATE, SPLIT_CONTEXT = 100.0, 8192.0
SPLIT_INPUT, SPLIT_OUTPUT = 1450.0, 483.0
"""Mean lengths that it states."""
