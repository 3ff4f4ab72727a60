"""One table says what is removed when: what removes goes by it, and what is shown says the same."""

from __future__ import annotations

import inspect

import pytest

from kinetic._backends.local import garbage_collection
from kinetic._images import isolated_environment
from kinetic._maintenance import rules
from kinetic._runner.data import file_cache


@pytest.mark.parametrize("rule", [rule for rule in rules.RULES if rule.seconds], ids=lambda rule: rule.name)
def test_what_is_shown_names_the_time_after_which_it_is_removed(rule: rules.Rule) -> None:
    days = rule.seconds / rules.DAY

    assert f"{days:g} day{'s' if days > 1 else ''}" in rule.stays


def test_the_backend_of_this_machine_sweeps_when_the_table_says() -> None:
    assert rules.seconds("working folders") == garbage_collection.DAY
    assert rules.seconds("being written") == garbage_collection.DAY
    assert rules.seconds("runner code") == garbage_collection.MONTH
    assert rules.seconds("environments") == isolated_environment.UNUSED_SECONDS
    assert rules.seconds("fetched data") == inspect.signature(file_cache.sweep).parameters["days"].default * rules.DAY


def test_every_kind_has_one_rule() -> None:
    names = [rule.name for rule in rules.RULES]

    assert len({*names}) == len(names)
