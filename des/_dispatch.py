"""Least-loaded dispatch in constant time.

Load is active + queued requests. The replicas of a pool that have one load form a doubly linked list. A
replica whose load changes joins the tail of its new list, and a request goes to the head of the list of the
least load: **of equally loaded replicas, the one whose load has been the same for longest** (at the start,
the lowest number). So ties spread over all of them.

Links and list ends hold ``index + 1``; 0 is "none", so lists start in untouched zeroed memory.
"""

from __future__ import annotations

from des._jit import jit


@jit
def link(replicas, heads, tails, slot, r):
    """Append replica `r` to the list at `slot`."""
    last = tails[slot]
    replicas[r]["before"] = last
    replicas[r]["after"] = 0
    if last == 0:
        heads[slot] = r + 1
    else:
        replicas[last - 1]["after"] = r + 1
    tails[slot] = r + 1


@jit
def unlink(replicas, heads, tails, slot, r):
    """Take replica `r` out of the list at `slot`."""
    before = replicas[r]["before"]
    after = replicas[r]["after"]
    if before == 0:
        heads[slot] = after
    else:
        replicas[before - 1]["after"] = after
    if after == 0:
        tails[slot] = before
    else:
        replicas[after - 1]["before"] = before


@jit
def change_load(replicas, pools, heads, tails, r, change):
    """Move replica `r` from the list of its load to that of its load + `change`, and keep the pool's least load."""
    pool = pools[replicas[r]["pool"]]
    first = pool["first_list"]
    old = replicas[r]["load"]
    new = old + change
    unlink(replicas, heads, tails, first + old, r)
    link(replicas, heads, tails, first + new, r)
    replicas[r]["load"] = new
    if new < pool["least_load"] or (old == pool["least_load"] and heads[first + old] == 0):
        pool["least_load"] = new


@jit
def least_loaded(pools, heads, p):
    """The replica of pool `p` that the next request goes to."""
    return heads[pools[p]["first_list"] + pools[p]["least_load"]] - 1
