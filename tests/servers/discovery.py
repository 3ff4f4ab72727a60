"""Google's published discovery documents: does a request, or an answer, fit what the API says of itself?

The documents come from the package google-api-python-client; only its static JSON is read. They mark almost nothing as
required and hold no rules between fields: what passes here may still be refused, what fails here is wrong.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

Page = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "any": (object,),
}


class Document:
    """One API as Google describes it."""

    def __init__(self, page: Page) -> None:
        self.schemas: Page = page["schemas"]
        self._common = set(page["parameters"])
        self._methods = list(_methods(page))

    def method(self, verb: str, path: str) -> Page:
        """Return the method that a request calls.

        Raises:
            LookupError: There is none.
        """
        for method in self._methods:
            if method["httpMethod"] == verb and re.fullmatch(_pattern(method.get("flatPath", method["path"])), path):
                return method
        raise LookupError(f"no method is called by {verb} /{path}")

    def complaints(self, verb: str, path: str, query: Mapping[str, str]) -> list[str]:
        """Say what is wrong with a request without a body."""
        method = self.method(verb, path)
        known = self._common | {
            name for name, each in method.get("parameters", {}).items() if not each.get("deprecated")
        }
        schema = {"$ref": method["response"]["$ref"]}
        masks = [mask for mask in _masks(query.get("fields", "")) if self._below(schema, mask) is None]
        unknown = [f"unknown parameter {name}" for name in query if name not in known]
        return unknown + [f"the answer has no field {'/'.join(mask)}" for mask in masks]

    def misfits(self, name: str, value: Any) -> list[str]:
        """Say where a value does not fit a schema."""
        return list(self._misfits({"$ref": name}, value, name))

    def _below(self, schema: Page, mask: list[str]) -> Page | None:
        for word in mask:
            schema = self._resolved(schema)
            schema = self._resolved(schema.get("items", schema))
            if word not in schema.get("properties", {}):
                return None
            schema = schema["properties"][word]
        return schema

    def _resolved(self, schema: Page) -> Page:
        return self.schemas[schema["$ref"]] if "$ref" in schema else schema

    def _misfits(self, schema: Page, value: Any, where: str) -> Iterator[str]:
        schema = self._resolved(schema)
        kind = schema.get("type", "any")
        if kind == "array":
            for at, each in enumerate(value if isinstance(value, list) else [value]):
                yield from self._misfits(schema["items"], each, f"{where}[{at}]")
        elif kind == "object":
            yield from self._fields(schema, value, where)
        elif not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
            yield f"{where} is {value!r} and no {kind}"
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{where} is {value!r}, none of {schema['enum']}"

    def _fields(self, schema: Page, value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where} is {value!r} and no object"
            return
        for name, each in value.items():
            field = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if field is None:
                yield f"{where} has no field {name}"
            else:
                yield from self._misfits(field, each, f"{where}.{name}")


@cache
def document(name: str) -> Document:
    """Read the document of an API, e.g. "container.v1"."""
    found = importlib.util.find_spec("googleapiclient")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "discovery_cache" / "documents"
    return Document(json.loads((folder / f"{name}.json").read_bytes()))


def _methods(page: Page) -> Iterator[Page]:
    yield from page.get("methods", {}).values()
    for each in page.get("resources", {}).values():
        yield from _methods(each)


def _pattern(path: str) -> str:
    return "".join("[^/]+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{[^}]*\})", path))


def _masks(written: str) -> Iterator[list[str]]:
    """Split a mask: "a,b/c,d(e,f)" is a, b/c, d/e and d/f."""
    for part in filter(None, re.split(r",(?![^(]*\))", written)):
        head, _, inner = part.partition("(")
        for each in inner.rstrip(")").split(",") if inner else [""]:
            yield [word for word in (*head.split("/"), *each.split("/")) if word]


def masked(page: Page, fields: str) -> Page:
    """Return of an answer what a mask names, as Google does; all of it without a mask."""
    found: Page = {}
    for mask in _masks(fields):
        _copy(page, found, mask)
    return found if fields else page


def _copy(page: Page, found: Page, mask: list[str]) -> None:
    word, *rest = mask
    if word not in page:
        return
    value = page[word]
    if not rest:
        found[word] = value
    elif isinstance(value, list):
        kept = found.setdefault(word, [{} for _ in value])
        for each, into in zip(value, kept, strict=True):
            _copy(each, into, rest)
    else:
        _copy(value, found.setdefault(word, {}), rest)
