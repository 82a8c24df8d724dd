"""What the list of jobs shows of a result: enough to set two plans side by side."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]

_SAID = {"verified": "good", "unverified": "warn", "infeasible": "bad", "refused": "bad"}
_VERDICTS = {"met": "good", "coin_flip": "warn", "missed": "bad"}


def summary(kind: str, document: Document) -> Document:
    """The leading figures of a plan or a simulated fleet, from its document.

    Returns:
        Keys that are None are not known: an infeasible plan has no fleet.
    """
    found = document.get("verification") or {}
    analytic = document.get("analytic") or {}
    verdict = found.get("verdict")
    tone = _SAID.get(document["status"], "") if kind == "plan" else _VERDICTS.get(verdict or "", "")
    inputs = document["inputs"]
    return {
        "status": document["status"],
        "tone": "bad" if found.get("overloaded") else tone,
        "message": _message(kind, document, verdict),
        "reasons": [reason["text"] for reason in document.get("reasons", [])],
        "pools": (document.get("design") or {}).get("pools"),
        "gpus": (document.get("design") or {}).get("gpus"),
        "cost_usd_per_hour": document.get("cost_usd_per_hour"),
        "cost_usd_per_million_output_tokens": document.get("cost_usd_per_million_output_tokens"),
        "utilization": analytic.get("utilization"),
        "analytic": {name: analytic.get(name) for name in ("ttft_p99_ms", "tpot_p99_ms")},
        "simulated": {name: found.get(name) for name in ("ttft_p99_ms", "tpot_p99_ms")},
        "slo_met": found.get("slo_met"),
        "requests": found.get("requests"),
        "inputs": {
            name: (inputs.get(name) or {}).get("value")
            for name in ("workload", "rate_rps", "ttft_p99_ms", "tpot_p99_ms", "model", "seed")
        },
    }


def _message(kind: str, document: Document, verdict: str | None) -> str:
    if kind == "plan":
        return str(document["message"])
    if (document.get("verification") or {}).get("overloaded"):
        return "the simulator says: overloaded"
    words = {"met": "meets the objectives", "coin_flip": "on the edge of an objective", "missed": "misses an objective"}
    return f"the simulator says: {words[verdict]}" if verdict in words else "simulated, without objectives"
