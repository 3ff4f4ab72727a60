"""From a project's folder to a tree in the store: only what the store does not hold yet is read and sent."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kinetic._blobs import file_tree, pack_writer
from kinetic._blobs.file_tree import File, LeftOut, Scan
from kinetic._blobs.pack_writer import PackSender
from kinetic._project import ignore, selection
from kinetic._project.root import Plan
from kinetic._stores.protocol import Store
from kinetic._wire import folders, trees

_UNUSED_SECONDS = 90 * 24 * 3600


@dataclass
class StoreContents:
    """What one store holds of a project: the packs with their sizes, and the tree that went there last.

    Attributes:
        packs: Their sizes by their ids.
        tree: The digest of the tree's top node, or "".
        tree_packs: The packs that hold it.
        looks: How the project looked, if every stamp could be trusted, else "".
        files: How many files the tree holds.
        bytes: What they hold.
    """

    packs: dict[str, int] = field(default_factory=dict)
    tree: str = ""
    tree_packs: tuple[str, ...] = ()
    looks: str = ""
    files: int = 0
    bytes: int = 0


class ProjectCache:
    """The memory of one project in one cache folder.

    Args:
        cache: The folder.
        root: The project's.
        stamps: Those of all files that are there now.
    """

    def __init__(self, cache: str, root: str, stamps: Sequence[str]) -> None:
        self._folder = cache
        self._path = f"{cache}/{file_tree.name_of(root)}"
        self._root = root
        self._stamps = stamps
        self._learned: dict[str, bytes] = {}
        self._learned_bytes = 0
        self._stores = self._load()

    def store(self, url: str) -> StoreContents:
        """Return what is known of a store."""
        about = self._stores.get(url)
        return (
            StoreContents() if about is None else StoreContents(**{**about, "tree_packs": tuple(about["tree_packs"])})
        )

    @functools.cached_property
    def digests(self) -> dict[str, bytes]:
        """The digests of files by their stamps."""
        return self._file.each()

    @functools.cached_property
    def _file(self) -> file_tree.Digests:
        return file_tree.Digests(f"{self._path}.stamps", self._root, self._stamps)

    def learn(self, stamp: str, size: int, digest: bytes) -> None:
        """Remember the digest of a file that was settled when it was read."""
        self._learned[stamp] = digest
        self._learned_bytes += size

    def trusts_all(self) -> bool:
        """Return whether every digest behind a stamp is known, so that equal stamps mean equal content."""
        return all(stamp in self._learned or stamp in self.digests for stamp in self._stamps)

    def is_worth_keeping(self) -> bool:
        """Return whether reading again what was learned would cost more than writing it down."""
        return len(self._learned) > 200 or self._learned_bytes > 4 << 20

    def write(self, url: str, about: StoreContents, indexes: Mapping[str, bytes]) -> None:
        """Write the page, and the index of each new pack; a cache that cannot be written is no error."""
        before = self._stores.get(url, {}).get("packs", {})
        self._stores[url] = asdict(about)
        with contextlib.suppress(OSError):
            for pack, index in indexes.items():
                folders.write_whole(f"{self._folder}/packs/{pack}", index)
        file_tree.write_page(f"{self._path}.json", {"root": self._root, "stores": self._stores})
        with contextlib.suppress(OSError):
            self._sweep(set(before) - {pack for store in self._stores.values() for pack in store["packs"]})

    def write_digests(self) -> None:
        """Write down the digests of files that are there now; others are forgotten."""
        known = {
            stamp: digest for stamp in self._stamps if (digest := self._learned.get(stamp, self.digests.get(stamp)))
        }
        self._file.write([*known], [*known.values()])

    def index(self, pack: str) -> list[trees.Blob] | None:
        """Return what a pack holds, or None when its index is not here or is damaged."""
        try:
            with open(f"{self._folder}/packs/{pack}", "rb") as file:
                data = file.read()
        except OSError:
            return None
        return trees.read_index(data) if hashlib.sha256(data).hexdigest() == pack else None

    def _sweep(self, packs: Iterable[str]) -> None:
        """Remove the indexes of packs that are not used any more, and pages of projects that nobody ships."""
        for pack in packs:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/packs/{pack}")
        oldest = time.time() - _UNUSED_SECONDS
        for folder in (self._folder, f"{self._folder}/packs"):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)

    def _load(self) -> dict[str, dict[str, Any]]:
        page = file_tree.read_page(f"{self._path}.json")
        try:
            stores: dict[str, dict[str, Any]] = page["stores"]
            if page["root"] == self._root and all(map(_is_sound, stores.values())):
                return stores
        except (KeyError, TypeError, AttributeError):
            pass
        return {}


def _is_sound(about: dict[str, Any]) -> bool:
    kinds = {"packs": dict, "tree": str, "tree_packs": list, "looks": str, "files": int, "bytes": int}
    return about.keys() == kinds.keys() and all(isinstance(about[name], kind) for name, kind in kinds.items())


def fingerprint_of(found: Scan) -> str:
    """Return the digest of every folder's path and every file's path and stamp.

    Where it is what it was when a tree was sent, neither the digests of all files nor the tree have to be computed.
    """
    lines = []
    for folder in found.folders:
        lines.append(folder.relative)
        lines += [f"{file.relative}\t{file.stamp}" for file in folder.files]
    return hashlib.sha256(os.fsencode("\0".join(lines))).hexdigest()


MANY_PACKS = 24  # a job opens or fetches every pack of its tree
_SMALL_PACK = 16 << 20

_Content = tuple[str, int]  # digest and size of a file or of a node


@dataclass(frozen=True)
class Shipped:
    """A project that lies in the store.

    Attributes:
        tree: The digest of its top node: equal files, equal digest.
        packs: The ids of the packs that hold it between them.
        files: How many files.
        bytes: What they hold.
        sent_bytes: What this call added to the store; 0 when nothing changed.
        notes: What the user should know, a sentence each.
    """

    tree: str
    packs: tuple[str, ...]
    files: int
    bytes: int
    sent_bytes: int
    notes: tuple[str, ...]


def ship(
    plan: Plan,
    store: Store,
    *,
    cache: Path,
    exclude: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> Shipped:
    """Bring a project into a store; what lies there already is not sent again.

    Args:
        plan: Which folder.
        store: Where to.
        cache: A folder of this machine in which kinetic remembers digests between calls.
        exclude: Paths that ship by themselves, as Data.
        environ: Where KINETIC_NO_DEFAULT_EXCLUDES and KINETIC_CONTEXT_SIZE_WARN_MB are read.

    Raises:
        ProjectRootError: The project is larger than 2 GB; nothing has been read then.
        StoreError: The store did not take it.
    """
    root = os.fspath(plan.root)
    rules, notes = ignore.read_rules(root, environ)
    apart = [*map(os.fspath, exclude), *ignore.private_places(environ)]
    walked = selection.scan_project(root, rules, exclude=apart)
    notes += ignore.differences_from_fnmatch(rules, walked.paths())
    there = {entry.key: entry.size for entry in store.entries("packs/")}
    stamps = [file.stamp for folder in walked.folders for file in folder.files]
    memory = ProjectCache(os.fspath(cache), root, stamps)
    known = _still_there(memory.store(store.url), there)
    looks = fingerprint_of(walked)
    if known.looks == looks:
        measures = known.files, known.bytes
        return Shipped(
            known.tree, known.tree_packs, *measures, 0, plan.notes + notes + selection.notes_about(walked, environ)
        )
    opener = selection.Opener(root, rules, apart)
    shipment = _Shipment(walked, opener, store, memory, known, os.fspath(cache), there)
    tree, packs = shipment.run(looks)
    notes = plan.notes + notes + selection.notes_about(walked, environ, unsteady=shipment.unsteady)
    return Shipped(tree, packs, *shipment.measures(), shipment.sent_bytes, notes)


class _Shipment:
    """One project on its way into one store."""

    def __init__(
        self,
        walked: Scan,
        opener: selection.Opener,
        store: Store,
        memory: ProjectCache,
        known: StoreContents,
        cache: str,
        there: Mapping[str, int],
    ) -> None:
        self._walked = walked
        self._opener = opener
        self._store = store
        self._memory = memory
        self._known = known
        self._cache = cache
        self._there = there
        self._contents: dict[str, _Content] = {}
        self.unsteady: list[str] = []
        self.sent_bytes = 0

    def run(self, looks: str) -> tuple[str, tuple[str, ...]]:
        """Return the tree's digest and its packs; read and send what must be, and remember how the project looked."""
        for file in self._files():
            if digest := self._memory.digests.get(file.stamp):
                self._contents[file.relative] = digest.hex(), file.size
        indexes: dict[str, bytes] = {}
        sizes = self._known.packs
        tree, packs = self._known.tree, self._known.tree_packs
        if not (tree and len(self._contents) == self._walked.files and tree == _fold(self._walked, self._contents)):
            tree, packs, sizes, indexes = self._send()
        about = StoreContents(sizes, tree, packs, looks if self._is_settled() else "", *self.measures())
        if about != self._known:
            self._memory.write(self._store.url, about, indexes)
        if indexes or tree != self._known.tree or self._memory.is_worth_keeping():
            self._memory.write_digests()
        return tree, packs

    def _is_settled(self) -> bool:
        """Return whether every file's stamp can be trusted: none was edited just now, none could not be read."""
        return not self.unsteady and len(self._contents) == self._walked.files and self._memory.trusts_all()

    def measures(self) -> tuple[int, int]:
        """Return how many files the tree holds, and how many bytes."""
        return len(self._contents), sum(size for _, size in self._contents.values())

    def _send(self) -> tuple[str, tuple[str, ...], dict[str, int], dict[str, bytes]]:
        """Return the tree and its packs, with their sizes, and the indexes of the new ones."""
        held = _held(self._memory, self._known)
        if spread := _too_spread(self._known):
            held = {digest: pack for digest, pack in held.items() if pack not in spread}
        sender = PackSender(self._store, self._there, held, self._cache)
        try:
            for file in self._files():
                self._bring(file, sender)
            nodes: list[bytes] = []
            tree = _fold(self._walked, self._contents, lambda digest, data: nodes.append(sender.add_node(digest, data)))
            sender.close()
        except BaseException:
            sender.discard()
            raise
        self.sent_bytes = sender.sent_bytes
        digests = [*(bytes.fromhex(digest) for digest, _ in self._contents.values()), *nodes]
        packs = tuple(dict.fromkeys(sender.held[digest] for digest in digests))
        sizes = {pack: sender.sizes.get(pack) or self._known.packs[pack] for pack in packs}
        return tree, packs, sizes, sender.indexes

    def _bring(self, file: File, sender: PackSender) -> None:
        """Make sure that the content of a file lies in a pack, and note its digest."""
        content = self._contents.get(file.relative)
        if content and sender.holds(bytes.fromhex(content[0])):
            return
        try:
            read = pack_writer.read_into_pack(functools.partial(self._opener.open, file), sender.writer(), sender.holds)
        except OSError as error:
            self._contents.pop(file.relative, None)
            reason = f"cannot be read: {error.strerror}"
            self._walked.left_out.append(LeftOut(file.relative, file.size, reason, "skipped"))
            return
        sender.add(read)
        self._contents[file.relative] = read.digest.hex(), read.size
        if read.stamp and read.settled:
            self._memory.learn(read.stamp, read.size, read.digest)
        elif not read.stamp:
            self.unsteady.append(file.relative)

    def _files(self) -> Iterator[File]:
        return (file for folder in self._walked.folders for file in folder.files)


def _fold(
    walked: Scan,
    contents: Mapping[str, _Content],
    found: Callable[[bytes, bytes], object] = lambda _digest, _data: None,
) -> str:
    """Compute the nodes from the deepest folders up, show each to ``found``, and return the top one's digest."""
    nodes: dict[str, _Content] = {}
    for folder in reversed(walked.folders):
        start = f"{folder.relative}/" if folder.relative else ""
        entries = [
            trees.Entry(file.relative[len(start) :], "x" if file.executable else "f", content[1], content[0])
            for file in folder.files
            if (content := contents.get(file.relative))
        ]
        for name in folder.folders:
            digest, size = nodes[start + name]
            entries.append(trees.Entry(name, "d", size, digest))
        data = trees.node(entries)
        raw = hashlib.sha256(data)
        nodes[folder.relative] = raw.hexdigest(), len(data)
        found(raw.digest(), data)
    return nodes[""][0]


def _still_there(known: StoreContents, there: Mapping[str, int]) -> StoreContents:
    """Forget packs that the store does not hold any more, or holds with another size."""
    packs = {pack: size for pack, size in known.packs.items() if there.get(trees.pack_key(pack)) == size}
    return replace(known, packs=packs) if packs.keys() >= set(known.tree_packs) else StoreContents(packs)


def _held(memory: ProjectCache, known: StoreContents) -> dict[bytes, str]:
    """Say for each digest which pack of the store holds it."""
    return {blob.digest: pack for pack in known.packs for blob in memory.index(pack) or ()}


def _too_spread(known: StoreContents) -> frozenset[str]:
    """Name the packs to write anew as one: all the small ones, when one more would be too many."""
    small = frozenset(pack for pack, size in known.packs.items() if size < _SMALL_PACK)
    allowed = max(8, MANY_PACKS - (len(known.packs) - len(small)))
    return small if len(small) >= allowed else frozenset()


@dataclass(frozen=True)
class ListedPath:
    """One path of the project.

    Attributes:
        path: Below the root, with forward slashes; a folder's ends with one.
        size: Bytes; None for a folder that is left out, since nobody looks into it.
        kept: It ships.
        reason: Why it does not; "" when it does.
    """

    path: str
    size: int | None
    kept: bool
    reason: str


@dataclass(frozen=True)
class Listing:
    """A project as it would ship.

    Attributes:
        root: Its folder.
        entries: Every path, sorted.
        files: How many files ship.
        bytes: What they hold.
        notes: What the user should know, a sentence each.
        problem: Why it could not ship as it is, or "".
    """

    root: str
    entries: tuple[ListedPath, ...]
    files: int
    bytes: int
    notes: tuple[str, ...]
    problem: str

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain data."""
        return asdict(self)


def list_project(plan: Plan, *, exclude: Sequence[Path] = (), environ: Mapping[str, str] = os.environ) -> Listing:
    """Say for every path of a project whether it ships; nothing is read or sent."""
    root = os.fspath(plan.root)
    rules, notes = ignore.read_rules(root, environ)
    apart = [*map(os.fspath, exclude), *ignore.private_places(environ)]
    walked = selection.scan_project(root, rules, exclude=apart, limited=False)
    notes += ignore.differences_from_fnmatch(rules, walked.paths())
    kept = [
        ListedPath(file.relative, file.size, kept=True, reason="") for folder in walked.folders for file in folder.files
    ]
    empty = [
        ListedPath(f"{at.relative}/", 0, kept=True, reason="")
        for at in walked.folders[1:]
        if not at.files and not at.folders
    ]
    left = [ListedPath(item.relative, item.size, kept=False, reason=item.reason) for item in walked.left_out]
    entries = tuple(sorted([*kept, *empty, *left], key=lambda item: item.path))
    problem = selection.too_large(root, walked)
    notes = plan.notes + notes + selection.notes_about(walked, environ)
    return Listing(root, entries, walked.files, walked.bytes, notes, problem.what if problem else "")
