"""What binds a pool: what is said, and that the simulator agrees when the cure is tried."""

from types import SimpleNamespace

import pytest
from fleets import make_profile

import des
import jaxsim
from des.bottleneck import Bottleneck, bottleneck, pool_bottleneck
from jaxsim.fleet import FleetDesign
from jaxsim.workload import Workload

RULES = [
    (False, 0.99, 0.99, 0.9, Bottleneck.NONE),
    (True, 0.97, 0.30, 0.9, Bottleneck.KV_MEMORY),
    (True, 0.30, 1.00, 0.9, Bottleneck.SEQUENCES),
    (True, 0.30, 1.00, 0.2, Bottleneck.RATE),
    (True, 0.97, 0.30, 0.2, Bottleneck.RATE),
    (True, 0.16, 0.10, 0.9, Bottleneck.RATE),
    (True, 0.16, 0.10, None, Bottleneck.RATE),
    (True, 0.30, 1.00, None, Bottleneck.SEQUENCES),
]


@pytest.mark.parametrize(("queueing", "kv", "sequences", "fixed", "kind"), RULES)
def test_the_rule(queueing, kv, sequences, fixed, kind):
    found = bottleneck(queueing=queueing, kv_utilization=kv, sequence_utilization=sequences, fixed_share=fixed)
    assert found.kind is kind
    assert f"{kv:.1%}" in found.text


@pytest.mark.parametrize(("kv", "never"), [(0.162, True), (0.95, False)])
def test_a_kv_trigger_is_said_never_to_fire_where_it_does_not(kv, never):
    found = bottleneck(queueing=True, kv_utilization=kv, sequence_utilization=0.5, fixed_share=0.1)
    assert ("never fires" in found.text) is never
    assert "queue wait or token rate" in found.text


def test_a_pool_that_keeps_up_has_no_bottleneck():
    pool = {"kv_utilization": 0.4, "sequence_utilization": 0.7, "step_time_s": 0.02, "mean_active": 9.0, "replicas": 2}
    at_ease = pool_bottleneck(SimpleNamespace(load=float("nan"), overloaded=False, **pool), step_base_s=0.01)
    assert at_ease.kind is Bottleneck.NONE
    assert "no request waited for room" in at_ease.text
    busy = pool_bottleneck(SimpleNamespace(load=0.93, overloaded=False, **pool), step_base_s=0.01)
    assert busy.kind is Bottleneck.NONE
    assert "0.93 of its capacity" in busy.text


@pytest.mark.parametrize(
    ("figures", "text"),
    [((1.2, 0.5, 0.5), "kv_utilization"), ((0.5, -0.1, 0.5), "sequence_utilization"), ((0.5, 0.5, 2.0), "fixed_share")],
)
def test_a_share_is_a_share(figures, text):
    kv, sequences, fixed = figures
    with pytest.raises(ValueError, match=f"{text} must be a share from 0 to 1"):
        bottleneck(queueing=True, kv_utilization=kv, sequence_utilization=sequences, fixed_share=fixed)


LIGHT = {"base_s": 0.02, "per_sequence_s": 0.0, "per_token_s": 1e-9, "prefill_per_token_s": 1e-7}
"""Steps of nearly constant length: room is worth having."""

HEAVY = {"base_s": 0.01, "per_sequence_s": 1e-3, "per_token_s": 1e-6, "prefill_per_token_s": 1e-4}
"""Steps that are work: more sequences only lengthen them."""

CURES = [
    (Bottleneck.KV_MEMORY, {**LIGHT, "kv_blocks": 120}, {"kv_blocks": 240}),  # three requests and three quarters
    (Bottleneck.SEQUENCES, {**LIGHT, "max_num_seqs": 16}, {"max_num_seqs": 32}),
    (Bottleneck.KV_MEMORY, {**LIGHT, "kv_blocks": 640}, {"kv_blocks": 1280}),
    (Bottleneck.RATE, {**HEAVY, "max_num_seqs": 16}, {"max_num_seqs": 64, "kv_blocks": 65_536}),
]


@pytest.mark.parametrize(("kind", "changes", "cure"), CURES, ids=["few", *(kind.name for kind, *_ in CURES[1:])])
def test_the_cure_helps_where_it_is_named_and_only_there(kind, changes, cure):
    """Overload a replica 1.3 times; with twice the room it is cured, or not, as the sentence says."""
    workload = Workload.from_lengths([450], [50])
    profile = make_profile(**changes)
    cured = make_profile(**{**changes, **cure})
    rate = 1.3 / float(jaxsim.evaluate(fleet(profile), workload, 1.0).utilization)
    pool = simulated(profile, workload, rate)
    assert pool.overloaded
    found = pool_bottleneck(pool, step_base_s=float(profile.step_base_s))
    assert found.kind is kind
    assert kind.value in found.text
    assert simulated(cured, workload, rate).overloaded is (kind is Bottleneck.RATE)


def fleet(profile):
    return FleetDesign.of(profile, [1.0], [1024.0])


def simulated(profile, workload, rate):
    return des.simulate(fleet(profile), workload, rate=rate, num_requests=12_000).pools[0]
