"""From a project's folder to a manifest in the store: only what the store does not have is read and sent."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from kinetic._blobs import file_tree
from kinetic._blobs.file_tree import Digests, File, Scan
from kinetic._blobs.sender import Sender, SentFile
from kinetic._project import ignore
from kinetic._project.ignore import Project
from kinetic._project.root import Plan
from kinetic._stores.protocol import Store
from kinetic._wire import dataclass, digests, keys
from kinetic._wire.order import Artifact, Manifest, ManifestFile

_MANY, _MUCH_BYTES = 200, 4 << 20  # reading this again would cost more than remembering its digests


@dataclass(frozen=True)
class Shipped:
    """A project that is in the store."""

    tree: str  # the digest of all paths, modes and contents: equal files, equal digest
    manifest: Artifact  # the page that lists the files; it is in the last pack
    packs: tuple[str, ...]  # the blobs that contain the project
    files: int  # how many files
    bytes: int  # their size
    sent_bytes: int = 0  # what this call added to the store; 0 when nothing changed
    notes: tuple[str, ...] = field(default=(), compare=False)  # what the user should know, a sentence each


def ship(
    plan: Plan, store: Store, *, cache: Path, exclude: Sequence[Path] = (), environ: Mapping[str, str] = os.environ
) -> Shipped:
    """Bring a project into a store; what is there already is not sent again.

    ``cache`` is where this machine remembers digests between calls; what ``exclude`` names is sent as data.

    Raises:
        ProjectRootError: The project is larger than 2 GB; nothing has been read then.
        StoreError: The store did not take it.
    """
    project, found, notes = scan(plan, exclude, environ)
    sender = Sender(store, Path(cache), project, compress=True)
    page = f"{cache}/{file_tree.name_of(project.root, store.url)}.json"
    fingerprint = fingerprint_of(found)
    shipped, before, sizes = _remembered(page)
    if shipped is not None and sender.are_there(shipped.packs, sizes) != set(shipped.packs):
        shipped = None
    unsteady: list[str] = []
    if shipped is None or before != fingerprint:
        shipped, is_settled, unsteady = _send(found, project, sender, Path(cache), shipped)
        sizes = {pack: sender.sizes[pack] for pack in shipped.packs}
        known = {**asdict(replace(shipped, sent_bytes=0)), "sizes": sizes}
        file_tree.write_page(page, {"fingerprint": fingerprint if is_settled else "", "shipped": known})
    return replace(shipped, notes=plan.notes + notes + ignore.notes_of_sending(project.lost_files, unsteady))


def scan(
    plan: Plan, exclude: Sequence[Path], environ: Mapping[str, str], *, limited: bool = True
) -> tuple[Project, Scan, tuple[str, ...]]:
    """Look at what of a project is sent; return what opens its files, the files, and notes for the user."""
    apart = [*map(os.fspath, exclude), *ignore.private_places(environ)]
    projects, scans, notes = dict[str, Project](), list[Scan](), list[str]()
    for name, folder in plan.sent():
        rules, of_rules = ignore.read_rules(folder, environ)
        projects[name] = Project(folder, rules, [*apart, os.fspath(plan.root)], limited=limited)
        scans.append(file_tree.scan(folder, projects[name]))
        paths = scans[-1].paths() if next(rules.of_the_user(), None) else []
        found_notes = (*ignore.differences_from_fnmatch(rules, paths), *ignore.notes_about(scans[-1], environ))
        notes += [f"{folder}: {note}" if name else note for note in (*of_rules, *found_notes)]
    project, found = projects.pop(""), scans.pop(0)
    project.beside = projects
    for name, scan_ in zip(projects, scans, strict=True):
        found = found.with_another(name, scan_)
    return project, found, tuple(notes)


def fingerprint_of(found: Scan) -> str:
    """Return the digest of every folder's path and every file's path and stamp.

    Where it is what it was when a tree was sent, neither the digests of all files nor the tree have to be computed.
    """
    digest = hashlib.sha256()
    for folder in found.folders:
        names = "\0".join([folder.relative, str(len(folder.files)), *[file.relative for file in folder.files], ""])
        digest.update(os.fsencode(names) + b"".join([file.stamp for file in folder.files]))
    return digest.hexdigest()


def _remembered(path: str) -> tuple[Shipped | None, str, dict[str, int]]:
    """Return what was sent last, the project's fingerprint then, and the sizes of the blobs."""
    page = file_tree.read_page(path)
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        known = dict(page["shipped"])
        sizes = {str(blob): int(size) for blob, size in known.pop("sizes").items()}
        known |= {"manifest": Artifact(**known["manifest"]), "packs": tuple(known["packs"]), "notes": ()}
        return Shipped(**known), str(page["fingerprint"]), sizes
    return None, "", {}


def _send(
    found: Scan, project: Project, sender: Sender, cache: Path, before: Shipped | None
) -> tuple[Shipped, bool, list[str]]:
    """Send what must be; return it, whether every stamp can be trusted, and which files changed meanwhile."""
    files = dict(enumerate(found.all_files()))
    stamps_path = f"{cache}/{file_tree.name_of(project.root)}.stamps"
    stamps = Digests(stamps_path, project.root, [file.stamp.hex() for file in files.values()])
    known = stamps.each()
    contents = {number: digest for number, file in files.items() if (digest := known.get(file.stamp.hex()))}
    held = sender.find(files, contents)
    tree = ""

    def page_of(sent: Mapping[int, SentFile]) -> tuple[list[str], bytes] | None:
        nonlocal tree
        listed = [each for number in files if (each := held.get(number) or sent.get(number))]
        tree = _digest(listed, found)
        if before is not None and before.tree == tree:
            return None
        blobs = list(dict.fromkeys(part.blob for each in listed for part in each.parts if part.blob))
        manifest = Manifest(tree, True, tuple(map(_entry, listed)), tuple(found.empty_folders()))  # noqa: FBT003 - a field
        return blobs, manifest.to_bytes(blobs=[*blobs, ""])

    sent, placed = sender.send_with_page({n: file for n, file in files.items() if n not in held}, page_of)
    learned = {number: each for number, each in sent.items() if each.trusted}
    if placed or len(learned) > _MANY or sum(each.file.size for each in learned.values()) > _MUCH_BYTES:
        remembered = {each.file.stamp.hex(): each.content for each in learned.values()}
        remembered |= {files[number].stamp.hex(): contents[number] for number in held if number in contents}
        stamps.write([*remembered], [*remembered.values()])
    is_settled = len(held) + len(learned) == len(files)
    unsteady = [each.file.relative for each in sent.values() if not each.steady]
    if placed is None:
        assert before is not None  # noqa: S101 - page_of compared with it
        return before, is_settled, unsteady
    size = sum(each.file.size for each in (*held.values(), *sent.values()))
    page = Artifact(placed.sha256, placed.part.length, key=keys.data_blob(placed.part.blob), start=placed.part.offset)
    shipped = Shipped(tree, page, tuple(placed.blobs), len(held) + len(sent), size, sender.sent_bytes)
    return shipped, is_settled, unsteady


def _entry(sent: SentFile) -> ManifestFile:
    """List a file without a digest of its own: a job reads whole packs, which are verified by their names."""
    file = sent.file
    return ManifestFile(file.relative, file.executable, file.size, "", sent.packed, sent.parts)


def _digest(listed: Sequence[SentFile], found: Scan) -> str:
    """Return the digest of all paths, modes and contents."""
    lines = [f"{each.file.relative}\0{'fx'[each.file.executable]}{each.content.hex()}" for each in listed]
    return digests.of_bytes("\0\0".join([*lines, "", *found.empty_folders()]).encode())


@dataclass(frozen=True)
class ListedPath:
    """One path of the project."""

    path: str  # below the root, with forward slashes; a folder's ends with one
    size: int | None  # bytes; None for a folder that is left out, since nobody looks into it
    kept: bool  # it is sent
    reason: str = ""  # why not; "" when it is


@dataclass(frozen=True)
class Listing:
    """A project as it would be sent."""

    root: str  # its folder
    entries: tuple[ListedPath, ...]  # every path, sorted
    files: int  # how many files are sent
    bytes: int  # their size
    notes: tuple[str, ...]  # what the user should know, a sentence each
    problem: str  # why it could not be sent as it is, or ""

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain data."""
        return asdict(self)


def list_project(plan: Plan, *, exclude: Sequence[Path] = (), environ: Mapping[str, str] = os.environ) -> Listing:
    """Return for every path of a project whether it is sent; nothing is read or sent."""
    project, found, notes = scan(plan, exclude, environ, limited=False)
    entries = [_listed(file) for file in found.all_files()]
    lost = [entry.size or 0 for entry in entries if not entry.kept]
    entries += [ListedPath(f"{folder}/", 0, kept=True) for folder in found.empty_folders()]
    entries += [ListedPath(item.relative, item.size, kept=False, reason=item.reason) for item in found.left_out]
    problem = ignore.too_large(project.root, found)
    listed = tuple(sorted(entries, key=lambda item: item.path))
    files, size = found.files - len(lost), found.bytes - sum(lost)
    return Listing(project.root, listed, files, size, plan.notes + notes, problem.what if problem else "")


def _listed(file: File) -> ListedPath:
    """List a file; one that cannot be opened is skipped when it is sent."""
    can_be_read = os.access(file.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    return ListedPath(file.relative, file.size, kept=can_be_read, reason="" if can_be_read else "cannot be read")
