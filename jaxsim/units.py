"""Unit conversions, named so that no factor stands bare in a formula."""

SECONDS_PER_HOUR = 3600.0
HOURS_PER_YEAR = 8760.0
MS_PER_S = 1e3
TOKENS_PER_MILLION = 1e6


def s_from_ms(milliseconds: float) -> float:
    """Seconds."""
    return milliseconds / MS_PER_S


def ms_from_s(seconds: float) -> float:
    """Milliseconds."""
    return seconds * MS_PER_S
