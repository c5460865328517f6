"""The table of fields fits the classes of columns, which the type checker knows."""

import dataclasses
from itertools import groupby
from operator import attrgetter
from typing import get_args

import pytest

from sluice_protocol.columns import Columns
from sluice_protocol.fields import KINDS, FieldType, Kind


@pytest.mark.parametrize("columns", get_args(Columns))
def test_columns_have_an_attribute_for_each_field(columns: type[Columns]) -> None:
    """A field may be None exactly if a frame may do without its column."""
    kind = columns.kind
    attributes = {one.name: one.default is None for one in dataclasses.fields(columns)}
    listed = {one.name: one.is_optional for one in kind.fields}
    assert attributes == listed | ({"attributes": True} if kind.has_attributes else {})


def test_each_kind_is_a_row_with_its_columns() -> None:
    assert list(KINDS) == list(get_args(Kind))
    assert {one.kind for one in get_args(Columns)} == set(KINDS.values())


def test_each_kind_begins_with_the_time() -> None:
    for kind in KINDS.values():
        assert (kind.fields[0].name, kind.fields[0].type) == ("ts", FieldType.TIME)
        assert kind.searched in {None, *(one.name for one in kind.own_fields)}


def test_fields_of_one_name_are_alike_in_all_kinds() -> None:
    """A filter finds the field by its name alone."""
    fields = [one for kind in KINDS.values() for one in kind.queried_fields]
    for _, group in groupby(sorted(fields, key=attrgetter("name")), attrgetter("name")):
        assert len({(one.type, one.labels, one.is_optional) for one in group}) == 1
