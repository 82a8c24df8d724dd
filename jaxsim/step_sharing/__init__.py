"""The step-sharing theory of continuous batching, as differentiable functions.

An engine's requests share its steps. Counted in steps it is an infinite-server queue whose arrivals come at a rate
proportional to the length of the current step, which grows linearly with the work present: a linear Hawkes process.
From that follow, in this order,

- `requests`: steps and work of a request, and sums over pairs of requests; `moments`: what a mix amounts to;
- `tables` (on `grid`, `groups`): the same of any length range of a workload, at a cost free of the trace;
- `fluctuations`: how many run and how much work is present, without a limit;
- `full`: how often all slots are taken; `waiting`: how long those wait who find them taken;
- `state` (with `noise`, `two_choices`): what an arrival finds; `response`: tails of the wait, TTFT and TPOT;
- `tokens`: a limit in KV tokens instead of requests.

Times are in seconds, ages and correlation times in steps. Sources: Koops, Saxena, Boxma, Mandjes 2018 (infinite-server
queues with Hawkes input); Daw, Pender 2018 (queues driven by Hawkes processes); Cohen 1979, Brandt and Brandt
(state-dependent processor sharing); Fredericks 1980 (Hayward's approximation).
"""

from jaxsim.step_sharing.fluctuations import Fluctuations, fluctuations
from jaxsim.step_sharing.moments import Moments, exact_moments
from jaxsim.step_sharing.requests import Requests
from jaxsim.step_sharing.response import Groups
from jaxsim.step_sharing.state import Load, State, state
from jaxsim.step_sharing.tables import Mix, SharingTable, between, tabulate

__all__ = [
    "Fluctuations",
    "Groups",
    "Load",
    "Mix",
    "Moments",
    "Requests",
    "SharingTable",
    "State",
    "between",
    "exact_moments",
    "fluctuations",
    "state",
    "tabulate",
]
