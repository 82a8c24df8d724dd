"""`fleetgrad profiles`."""

from __future__ import annotations

from optim.commands import _common as common


def profiles(as_json: common.AsJson = False) -> None:
    """The presets with every constant and its source, and the workloads that come with the package."""
    from jaxsim.embedded import workload, workload_names
    from jaxsim.profiles import profile, profile_names
    from optim.documents import profiles_document, to_json
    from optim.tables import profiles_report

    presets = [profile(name) for name in profile_names()]
    workloads = []
    for name in workload_names():
        one = workload(name)
        kind = "CDF of totals" if "CDF of total tokens" in one.notes else "trace"
        entry = {"name": name, "kind": kind, "rate_rps": one.rate, "source": one.source, "notes": list(one.notes)}
        workloads.append(entry)
    if as_json:
        common.show_json(to_json(profiles_document(presets, workloads)))
    else:
        common.show(profiles_report(presets, workloads))
