"""The published schema describes what is written, and notices what is not a record."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_examples
from driftscope.records.finding import Finding, Where
from driftscope.records.json_schema import schema_of
from driftscope.records.kinds.collection import COLLECTION_SCHEMA, Collection, Entry
from driftscope.records.kinds.comparison import SCHEMA, Comparison
from driftscope.records.kinds.output import OutputRecord, Side, Tolerance
from driftscope.records.verdict import Verdict

VALIDATOR = jsonschema.Draft202012Validator(schema_of(Comparison, SCHEMA))

numbers = st.none() | st.floats()
words = st.none() | st.text(max_size=8)
places = st.builds(Where, *[words] * 5, st.none() | st.integers(), words)
findings = st.builds(
    Finding,
    st.from_regex(r"[A-Z][0-9]{3}", fullmatch=True),
    st.text(),
    where=places,
    verified=st.none() | st.booleans(),
)
sides = st.none() | st.builds(
    Side, st.text(max_size=8), st.none() | st.lists(st.integers(0, 9)).map(tuple), numbers, numbers, numbers
)
tolerances = st.none() | st.builds(Tolerance, st.floats(), st.floats(), st.text())
outputs = st.builds(
    OutputRecord, st.text(), st.sampled_from(Verdict), st.text(), st.text(), floors=numbers, lifted=numbers,
    max_ulp=numbers, worst_index=st.none() | st.lists(st.integers()).map(tuple), closer=words, a=sides, b=sides,
    worst_values=st.none() | st.tuples(st.text(), st.text()), tolerance=tolerances,
)  # fmt: skip
records = st.builds(
    Comparison, st.sampled_from(Verdict), st.text(), st.lists(outputs, max_size=3).map(tuple),
    st.lists(findings, max_size=3).map(tuple), times=st.dictionaries(st.text(), st.floats()),
)  # fmt: skip


@pytest.mark.parametrize("name", record_examples.ALL)
def test_records_fit_their_schema(name: str) -> None:
    VALIDATOR.validate(record_examples.ALL[name]().to_dict())


def test_collections_fit_theirs() -> None:
    whole = Collection("both", (Entry("a", "b", record_examples.rounding()), Entry("c", "d", record_examples.many(5))))
    jsonschema.Draft202012Validator(schema_of(Collection, COLLECTION_SCHEMA)).validate(whole.to_dict())


@given(records)
def test_any_record_fits_is_json_and_comes_back_the_same(record: Comparison) -> None:
    data = record.to_dict()
    VALIDATOR.validate(data)
    text = json.dumps(data, allow_nan=False)
    assert json.dumps(Comparison.from_dict(json.loads(text)).to_dict()) == text


@pytest.mark.parametrize(
    "change",
    [{"verdict": "FINE"}, {"schema": "driftscope/comparison/2"}, {"outputs": {}}, {"reason": 3}, {"times": {"a": "b"}}],
)
def test_what_is_no_record_does_not_fit(change: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(record_examples.rounding().to_dict() | change)


def test_a_missing_field_does_not_fit_and_a_new_one_does() -> None:
    data = record_examples.rounding().to_dict()
    assert VALIDATOR.is_valid(data | {"new": 1})
    del data["outputs"]
    assert not VALIDATOR.is_valid(data)


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(schema_of(Comparison, SCHEMA))
