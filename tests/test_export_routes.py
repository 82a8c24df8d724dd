"""The routing table: valid by its schema, and the plan."""

import json

import jsonschema
import pytest
import yaml
from exported import CONTEXT, deployed, document, fleet
from reading_exports import GIVEN, KINDS, written

from optim.export_plan import fleet_of_document
from optim.export_routes import Routes, routes_of, routes_schema


@pytest.mark.parametrize("kind", KINDS)
def test_the_routing_table_is_valid_and_the_plan(kind):
    files = written(kind, "routes", GIVEN)
    table, schema = (json.loads(files[name]) for name in ("routes.json", "routes.schema.json"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(table, schema)
    assert schema == json.loads(json.dumps(routes_schema()))
    assert Routes.model_validate(table) == routes_of(fleet(kind), GIVEN)
    rows = {row["pool"]: (row["replicas"], row["gpus_per_replica"], row["max_context"]) for row in table["pools"]}
    assert rows == deployed(kind)
    assert table["rejected_above_tokens"] == int(CONTEXT)
    (kubernetes,) = written(kind, "kubernetes", GIVEN).values()
    services = [o["metadata"]["name"] for o in yaml.safe_load_all(kubernetes) if o["kind"] == "Service"]
    assert [row["service"] for row in table["pools"]] == services


def test_every_length_goes_where_the_design_sends_it():
    """First pool whose threshold is at least the total: the table's ranges against the document's thresholds."""
    table = routes_of(fleet("two pools"), GIVEN)
    uppers = [row["upper_tokens"] for row in document("two pools")["design"]["pools"]]
    for total in (1, 2, 1999, 2000, 2001, 7999, 8000):
        expected = next(p for p, upper in enumerate(uppers) if total <= upper)
        found = [p for p, row in enumerate(table.pools) if row.lower_tokens <= total <= row.upper_tokens]
        assert found == [expected]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"replicas": 0}, "less than the minimum"),
        ({"service": "Fleet_0"}, "does not match"),
        ({"role": "router"}, "is not one of"),
        ({"lower_tokens": 1.5}, "is not of type"),
        ({"colour": "blue"}, "Additional properties"),
    ],
)
def test_the_schema_refuses_other_tables(change, why):
    table = json.loads(written("one pool", "routes")["routes.json"])
    table["pools"][0] |= change
    with pytest.raises(jsonschema.ValidationError, match=why):
        jsonschema.validate(table, routes_schema())


def test_ranges_with_a_gap_are_no_table():
    table = routes_of(fleet("two pools"), GIVEN).model_dump()
    table["pools"][1]["lower_tokens"] += 1
    with pytest.raises(ValueError, match="pool-1 must begin at 2001 tokens"):
        Routes.model_validate(table)


def test_a_fleet_under_another_router_has_no_table_of_lengths():
    doc = document("two pools")
    doc["inputs"]["router"] = {"value": "spillover", "source": "given"}
    with pytest.raises(ValueError, match="routed by length, got router 'spillover'"):
        routes_of(fleet_of_document(doc), GIVEN)
