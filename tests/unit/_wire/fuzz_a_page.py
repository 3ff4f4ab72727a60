"""Feed one page reader with inputs that atheris derives from coverage: ``fuzz_a_page.py READER CORPUS LIMITS``."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["kinetic"]):
    readers = runpy.run_path(str(Path(__file__).with_name("test_page_fuzz.py")))["READERS"]
    from kinetic.errors import KineticError

read, honest = readers[sys.argv[1]]
LONGEST = 2000  # characters of an error: whatever somebody wrote there is not printed at length


def feed(data: bytes) -> None:
    try:
        page = json.loads(data)
    except (ValueError, RecursionError):
        return  # test_any_bytes_are_a_page_or_refused_in_our_words has those
    try:
        read(page)
    except KineticError as error:
        if len(str(error)) > LONGEST:
            raise AssertionError("an error at length") from error


if __name__ == "__main__":
    corpus = Path(sys.argv[2])
    (corpus / "honest").write_text(json.dumps(honest))
    for number, name in enumerate(honest):  # and without each of its fields
        (corpus / f"less-{number}").write_text(json.dumps({key: honest[key] for key in honest if key != name}))
    atheris.Setup([sys.argv[0], f"-artifact_prefix={corpus}/", *sys.argv[3:], str(corpus)], feed)
    atheris.Fuzz()
