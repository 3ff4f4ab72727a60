"""From a project's folder to a tree in the store: only what the store does not hold yet is read and sent."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kinetic._blobs.scan import File, LeftOut, Scan
from kinetic._packing import ignore, reading, remarks, walking
from kinetic._packing.remembering import Memory, StoreMemory, looks_of
from kinetic._packing.root import Plan
from kinetic._packing.sending import Sender
from kinetic._stores.protocol import Store
from kinetic._wire import trees

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
    rules, notes = ignore.read(root, environ)
    apart = [*map(os.fspath, exclude), *ignore.private_places(environ)]
    walked = walking.walk(root, rules, exclude=apart)
    notes += ignore.meant_more(rules, walked.paths())
    there = {entry.key: entry.size for entry in store.entries("packs/")}
    stamps = [file.stamp for folder in walked.folders for file in folder.files]
    memory = Memory(os.fspath(cache), root, stamps)
    known = _still_there(memory.store(store.url), there)
    looks = looks_of(walked)
    if known.looks == looks:
        measures = known.files, known.bytes
        return Shipped(known.tree, known.tree_packs, *measures, 0, plan.notes + notes + remarks.about(walked, environ))
    opener = walking.Opener(root, rules, apart)
    shipment = _Shipment(walked, opener, store, memory, known, os.fspath(cache), there)
    tree, packs = shipment.run(looks)
    notes = plan.notes + notes + remarks.about(walked, environ, unsteady=shipment.unsteady)
    return Shipped(tree, packs, *shipment.measures(), shipment.sent_bytes, notes)


class _Shipment:
    """One project on its way into one store."""

    def __init__(
        self,
        walked: Scan,
        opener: walking.Opener,
        store: Store,
        memory: Memory,
        known: StoreMemory,
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
        about = StoreMemory(sizes, tree, packs, looks if self._is_settled() else "", *self.measures())
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
        sender = Sender(self._store, self._there, held, self._cache)
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

    def _bring(self, file: File, sender: Sender) -> None:
        """Make sure that the content of a file lies in a pack, and note its digest."""
        content = self._contents.get(file.relative)
        if content and sender.holds(bytes.fromhex(content[0])):
            return
        try:
            read = reading.read(functools.partial(self._opener.open, file), sender.writer(), sender.holds)
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


def _still_there(known: StoreMemory, there: Mapping[str, int]) -> StoreMemory:
    """Forget packs that the store does not hold any more, or holds with another size."""
    packs = {pack: size for pack, size in known.packs.items() if there.get(trees.pack_key(pack)) == size}
    return replace(known, packs=packs) if packs.keys() >= set(known.tree_packs) else StoreMemory(packs)


def _held(memory: Memory, known: StoreMemory) -> dict[bytes, str]:
    """Say for each digest which pack of the store holds it."""
    return {blob.digest: pack for pack in known.packs for blob in memory.index(pack) or ()}


def _too_spread(known: StoreMemory) -> frozenset[str]:
    """Name the packs to write anew as one: all the small ones, when one more would be too many."""
    small = frozenset(pack for pack, size in known.packs.items() if size < _SMALL_PACK)
    allowed = max(8, MANY_PACKS - (len(known.packs) - len(small)))
    return small if len(small) >= allowed else frozenset()
