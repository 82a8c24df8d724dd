"""The link over which a prefill pool hands KV caches to a decode pool."""

from __future__ import annotations

from dataclasses import dataclass

from jaxsim._checks import require_non_negative, require_positive


@dataclass(frozen=True, kw_only=True)
class KvTransfer:
    """One link that all transfers share, first come first served, one at a time.

    A transfer of n prompt tokens takes ``latency_s + n * kv_bytes_per_token / bytes_per_s`` seconds. The first token
    reaches the user when it ends.

    Attributes:
        kv_bytes_per_token: KV cache of one token, all layers, bytes.
        bytes_per_s: bandwidth of the link, bytes a second.
        latency_s: fixed time of a transfer, seconds.
    """

    kv_bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        require_non_negative("kv_bytes_per_token", self.kv_bytes_per_token)
        require_positive("bytes_per_s", self.bytes_per_s)
        require_non_negative("latency_s", self.latency_s)

    @property
    def s_per_token(self) -> float:
        """Seconds of the link that a prompt token takes."""
        return self.kv_bytes_per_token / self.bytes_per_s
