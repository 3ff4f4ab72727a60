"""Named tuples of kinetic are those of typing, made without compiling each annotation."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

from kinetic import _wire


class Ours(_wire.NamedTuple):
    """One of ours."""

    name: str
    size: int = 3
    parts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name} {self.size}"

    @classmethod
    def of(cls, name: str) -> Ours:
        return cls(name)


class Theirs(typing.NamedTuple):
    """One of theirs."""

    name: str
    size: int = 3
    parts: tuple[str, ...] = ()


def test_fields_defaults_and_signature_are_those_of_typing() -> None:
    assert (Ours._fields, Ours._field_defaults) == (Theirs._fields, Theirs._field_defaults)
    assert list(inspect.signature(Ours).parameters) == list(inspect.signature(Theirs).parameters)
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)
    assert (Ours("a", 1) == Theirs("a", 1), hash(Ours("a")) == hash(Theirs("a"))) == (True, True)
    with pytest.raises(TypeError):
        Ours()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Ours("a").size = 4


def test_methods_properties_names_and_copies_work() -> None:
    found = Ours.of("a")._replace(size=5)

    assert (found.text, Ours.__doc__, Ours.__module__, Ours.__qualname__) == ("a 5", "One of ours.", __name__, "Ours")
    assert repr(found) == "Ours(name='a', size=5, parts=())"
    assert found._asdict() == {"name": "a", "size": 5, "parts": ()}


def test_they_are_copied_and_pickled() -> None:
    found = Ours("a", 1, ("b",))

    assert copy.deepcopy(found) == found
    assert type(pickle.loads(pickle.dumps(found))) is Ours


def test_members_keep_the_order_in_which_they_are_written_as_documents_show_it() -> None:
    words = [f"member_{number}" for number in range(20)]

    made = type(_wire.NamedTuple)("Made", (_wire.NamedTuple,), {"__module__": __name__, **dict.fromkeys(words)})

    assert [name for name in vars(made) if name in words] == words
