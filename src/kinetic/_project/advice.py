"""What a user should be told about a project that ships: secrets left out, what could not be read, sheer size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinetic._blobs.scan import Scan
from kinetic._output.format import size_text
from kinetic._project.ignore import FILE

WARN_VARIABLE = "KINETIC_CONTEXT_SIZE_WARN_MB"
_WARN_MB = 100.0
_NAMED = 10  # names in one line


def notes_about(walked: Scan, environ: Mapping[str, str], *, unsteady: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the notes about a walk, a sentence each; usually none."""
    notes = [*_note_secrets(walked), *_note_links_outside(walked), *_note_skipped(walked)]
    if unsteady:
        notes.append(f"written to while they were packed, so they ship as they were at that moment: {_some(unsteady)}")
    limit, complaint = _limit(environ)
    notes += complaint
    if 0 < limit < walked.bytes / 1_000_000:
        notes.append(_note_size(walked, limit))
    return tuple(notes)


def _note_secrets(walked: Scan) -> list[str]:
    names = [left.relative for left in walked.left_out if left.origin == "secret"]
    if not names:
        return []
    line = f"!{escaped(names[0])[1:]}"
    return [f"left out because they look like secrets: {_some(names)} (a line '{line}' in {FILE} ships it)"]


def _note_links_outside(walked: Scan) -> list[str]:
    links = [f"{left.relative.rstrip('/')} ({left.reason})" for left in walked.left_out if left.origin == "outside"]
    if not links:
        return []
    told = f"skipped links that lead out of the project: {_some(links)}; copy what the job needs into the project, "
    return [f"{told}pass it as kinetic.Data, or set KINETIC_PACKAGE_ROOT to a folder that holds both"]


def _note_skipped(walked: Scan) -> list[str]:
    skipped = [f"{left.relative}: {left.reason}" for left in walked.left_out if left.origin == "skipped"]
    more = [f"skipped {len(skipped) - _NAMED} more files that cannot ship"] if len(skipped) > _NAMED else []
    return [f"skipped {line}" for line in skipped[:_NAMED]] + more


def _limit(environ: Mapping[str, str]) -> tuple[float, list[str]]:
    text = environ.get(WARN_VARIABLE, "")
    try:
        return (float(text) if text.strip() else _WARN_MB), []
    except ValueError:
        return _WARN_MB, [f"{WARN_VARIABLE} is not a number: {text!r}; the limit is {_WARN_MB:g} MB"]


def _note_size(walked: Scan, limit: float) -> str:
    largest = walked.largest(5)
    files = ", ".join(f"{file.relative} ({size_text(file.size)})" for file in largest)
    lines = "\n".join(f"    {escaped(file.relative)}" for file in largest)
    return (
        f"the project holds {size_text(walked.bytes)} in {walked.files} files, more than {limit:g} MB "
        f"({WARN_VARIABLE}); the largest: {files}. These lines in {FILE} would leave them out:\n{lines}"
    )


def escaped(relative: str) -> str:
    """Return the line of an ignore file that fits exactly one path."""
    text = "".join(f"\\{sign}" if sign in "\\*?[" else sign for sign in relative)
    if text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return f"/{text}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
