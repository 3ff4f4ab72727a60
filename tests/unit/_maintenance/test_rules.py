"""One table says what is removed when: what removes goes by it, and what is shown says the same."""

from __future__ import annotations

import inspect

import pytest

from kinetic._backends.local import expired_files
from kinetic._images import isolated_environment
from kinetic._maintenance import garbage_collection as maintenance_garbage_collection
from kinetic._runner.data import file_cache


@pytest.mark.parametrize(
    "rule", [rule for rule in maintenance_garbage_collection.RULES if rule.seconds], ids=lambda rule: rule.name
)
def test_what_is_shown_names_the_time_after_which_it_is_removed(rule: maintenance_garbage_collection.Rule) -> None:
    days = rule.seconds / maintenance_garbage_collection.DAY

    assert f"{days:g} day{'s' if days > 1 else ''}" in rule.stays


def test_the_backend_of_this_machine_sweeps_when_the_table_says() -> None:
    assert maintenance_garbage_collection.retention_seconds("working folders") == expired_files.DAY
    assert maintenance_garbage_collection.retention_seconds("being written") == expired_files.DAY
    assert maintenance_garbage_collection.retention_seconds("runner code") == expired_files.MONTH
    assert maintenance_garbage_collection.retention_seconds("environments") == isolated_environment.UNUSED_SECONDS
    assert (
        maintenance_garbage_collection.retention_seconds("fetched data")
        == inspect.signature(file_cache.sweep).parameters["days"].default * maintenance_garbage_collection.DAY
    )


def test_every_kind_has_one_rule() -> None:
    names = [rule.name for rule in maintenance_garbage_collection.RULES]

    assert len({*names}) == len(names)
