"""Google's published discovery documents: does a request, or an answer, fit what the API says of itself?

The documents come from the package google-api-python-client; only its static JSON is read. They mark little as
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

_INTEGERS = {"int64", "uint64"}  # formats of strings
_OUTPUT = re.compile(r"(Output only\. )?\[Output Only\]")  # how compute marks most of what it alone writes
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
        below = page.get("servicePath", "")
        self._methods = [
            (method, re.compile(_pattern(below + method.get("flatPath", method["path"])))) for method in _methods(page)
        ]

    def method(self, verb: str, path: str) -> Page:
        """Return the method that a request calls.

        Raises:
            LookupError: There is none.
        """
        for method, pattern in self._methods:
            if method["httpMethod"] == verb and pattern.fullmatch(path):
                return method
        raise LookupError(f"no method is called by {verb} /{path}")

    def complaints(self, verb: str, path: str, query: Mapping[str, str], body: bytes = b"") -> list[str]:
        """Say what is wrong with a request."""
        method = self.method(verb, path)
        parameters = method.get("parameters", {})
        known = self._common | {name for name, each in parameters.items() if not each.get("deprecated")}
        found = [f"unknown parameter {name}" for name in query if name not in known]
        found += [
            f"the parameter {name} is missing"
            for name, each in parameters.items()
            if each.get("required") and each["location"] == "query" and name not in query
        ]
        for name in query.keys() & parameters.keys():
            found += self._wrong_parameter(parameters[name], query[name], name)
        schema = {"$ref": method["response"]["$ref"]} if "response" in method else {}
        masks = [mask for mask in _masks(query.get("fields", "")) if self._below(schema, mask) is None]
        found += [f"the answer has no field {'/'.join(mask)}" for mask in masks]
        return found + self._wrong_body(method, body)

    def _wrong_parameter(self, schema: Page, value: str, name: str) -> Iterator[str]:
        if schema.get("type") in {"integer", "number"}:
            if not re.fullmatch(r"-?[0-9]+", value):
                yield f"the parameter {name} is {value!r} and no number"
        elif schema.get("type") == "boolean":
            if value not in {"true", "false"}:
                yield f"the parameter {name} is {value!r} and no boolean"
        else:
            yield from self._misfits(schema, value, f"the parameter {name}")

    def _wrong_body(self, method: Page, body: bytes) -> list[str]:
        if "request" not in method:
            return ["a body where none belongs"] if body.strip() not in {b"", b"{}"} else []
        try:
            page = json.loads(body or b"{}")
        except ValueError:
            return ["the body is no JSON"]
        name = method["request"]["$ref"]
        return list(self._misfits({"$ref": name}, page, name, method["id"]))

    def misfits(self, name: str, value: Any) -> list[str]:
        """Say where a value does not fit a schema."""
        return list(self._misfits({"$ref": name}, value, name))

    def _below(self, schema: Page, mask: list[str]) -> Page | None:
        for word in mask:
            schema = self._resolved(schema)
            schema = self._resolved(schema.get("items", schema))
            inner = schema.get("properties", {}).get(word) or schema.get("additionalProperties")
            if inner is None:
                return None
            schema = inner
        return schema

    def _resolved(self, schema: Page) -> Page:
        return self.schemas[schema["$ref"]] if "$ref" in schema else schema

    def _misfits(self, schema: Page, value: Any, where: str, sent_to: str = "") -> Iterator[str]:
        """Yield what is wrong; of what is sent to a method, also what only the service may write."""
        schema = self._resolved(schema)
        kind = schema.get("type", "any")
        if kind == "array":
            for at, each in enumerate(value if isinstance(value, list) else [value]):
                yield from self._misfits(schema["items"], each, f"{where}[{at}]", sent_to)
        elif kind == "object":
            yield from self._fields(schema, value, where, sent_to)
        elif not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
            yield f"{where} is {value!r} and no {kind}"
        elif "enum" in schema and value not in schema["enum"]:
            yield f"{where} is {value!r}, none of {schema['enum']}"
        elif "enumDeprecated" in schema and schema["enumDeprecated"][schema["enum"].index(value)] and sent_to:
            yield f"{where} is {value!r}, which is deprecated"
        elif schema.get("format") in _INTEGERS and not re.fullmatch(r"-?[0-9]+", str(value)):
            yield f"{where} is {value!r} and no number in a string"
        elif sent_to and kind == "string" and not re.fullmatch(schema.get("pattern", ".*"), value, re.DOTALL):
            yield f"{where} is {value!r}, which does not fit {schema['pattern']}"

    def _fields(self, schema: Page, value: Any, where: str, sent_to: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where} is {value!r} and no object"
            return
        fields = schema.get("properties", {})
        for name, each in value.items():
            field = fields.get(name) or schema.get("additionalProperties")
            if field is None:
                yield f"{where} has no field {name}"
                continue
            if sent_to and (field.get("readOnly") or _OUTPUT.match(field.get("description", ""))):
                yield f"{where}.{name} is written by the service alone"
            if sent_to and field.get("deprecated"):
                yield f"{where}.{name} is deprecated"
            yield from self._misfits(field, each, f"{where}.{name}", sent_to)
        for name, field in fields.items() if sent_to else ():
            if sent_to in field.get("annotations", {}).get("required", ()) and name not in value:
                yield f"{where}.{name} is required"


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
    """Write a path as a regular expression; what follows a ":" is a verb and belongs to no variable."""
    return "".join("[^/:]+" if part.startswith("{") else re.escape(part) for part in re.split(r"(\{[^}]*\})", path))


def _masks(written: str) -> Iterator[list[str]]:
    """Split a mask: "a,b/c,d(e,f/g(h))" is a, b/c, d/e and d/f/g/h."""
    for part in _parts(written):
        head, _, inner = part.partition("(")
        words = [word for word in head.split("/") if word]
        if not inner:
            yield words
        for each in _masks(inner.removesuffix(")")):
            yield words + each


def _parts(written: str) -> Iterator[str]:
    """Split at the commas that are in no parentheses."""
    depth, part = 0, ""
    for letter in written:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            yield part
            part = ""
        else:
            part += letter
    if part:
        yield part


def masked(page: Page, fields: str) -> Page:
    """Return of an answer what a mask names, as Google does; all of it without a mask."""
    found: Page = {}
    for mask in _masks(fields):
        _copy(page, found, mask)
    return found if fields else page


def _copy(page: Page, found: Page, mask: list[str]) -> None:
    word, *rest = mask
    for name in list(page) if word == "*" else [word] if word in page else []:
        value = page[name]
        if not rest:
            found[name] = value
        elif isinstance(value, list):
            kept = found.setdefault(name, [{} for _ in value])
            for each, into in zip(value, kept, strict=True):
                _copy(each, into, rest)
        else:
            _copy(value, found.setdefault(name, {}), rest)
