"""What the model's P99s are worth: regions by the work, the edge of the queue, and the note of a plan."""

from dataclasses import replace

import numpy as np
import pytest

import jaxsim
from jaxsim.validity import REGIONS, STEEP, validity
from optim.documents import validity_notes

LENGTHS = jaxsim.Workload.from_lengths(np.array([200.0, 900.0, 2500.0]), np.array([100.0, 300.0, 50.0]))


def figures(rate, *, prefill_s=0.0, replicas=2.0):
    engine = replace(jaxsim.profile("h100-80gb"), max_num_seqs=16.0, prefill_per_token_s=prefill_s)
    return jaxsim.evaluate(jaxsim.FleetDesign.of(engine, [replicas], [4096.0]), LENGTHS, rate)


def test_the_region_is_that_of_the_work():
    for prefill_s, region in ((0.0, REGIONS[0]), (5e-5, REGIONS[1])):
        found = figures(5.0, prefill_s=prefill_s)
        (pool,) = validity(found)
        assert pool.region is region
        assert region.words in validity_notes(found)[0]
    assert float(found.pools.prefill_work_share[0]) > 0.02


def test_the_edge_of_the_queue_is_named():
    rates = np.linspace(5.0, 30.0, 60)
    found = [figures(rate) for rate in rates]
    waits = np.array([float(f.pools.wait_probability[0]) for f in found])
    assert np.all(np.diff(waits) >= 0.0)
    near = (waits > 0.01 / STEEP) & (waits < 0.01 * STEEP)
    assert near.any()
    assert [validity(f)[0] is not None and validity(f)[0].steep for f in found] == near.tolist()
    assert "edge of the queue" in validity_notes(found[near.argmax()])[-1]


@pytest.mark.parametrize("rate", [0.0, 1e4])
def test_no_word_on_a_pool_without_a_p99(rate):
    assert validity(figures(rate)) == (None,)
    assert validity_notes(figures(rate)) == []
