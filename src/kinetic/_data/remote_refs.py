"""References to data elsewhere: objects and prefixes of buckets, checked before a job starts, and data sets."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kinetic._data import data as data_
from kinetic._data.data import Data
from kinetic._output import terminal as output
from kinetic._stores import open_store
from kinetic._stores.protocol import Store, parse_address
from kinetic._wire import NamedTuple
from kinetic._wire.order import DataRef, Kind
from kinetic.errors import AccessDeniedError, CredentialsError, DataMissingError, OptionError, StoreError

_PARAMETERS = ("split", "config_name", "revision")
Opener = Callable[[str], Store]


class DataSet(NamedTuple):
    """A Hugging Face data set, ``hf://{repo}?split=…&config_name=…&revision=…``; "" for what is not given."""

    repo: str
    split: str = ""
    config_name: str = ""
    revision: str = ""

    @property
    def uri(self) -> str:
        """The address in its one spelling, which every reader of query strings understands alike."""
        from urllib.parse import quote, urlencode  # 5 ms, for data sets only

        given = {name: value for name in _PARAMETERS if (value := getattr(self, name))}
        return f"hf://{quote(self.repo)}" + (f"?{urlencode(given, quote_via=quote, safe='')}" if given else "")


def refer_to(data: Data, *, opener: Opener = open_store, awaited: Collection[str] = ()) -> DataRef:
    """Refer to data in a bucket, or to a Hugging Face data set.

    ``awaited``: output folders of jobs that the new one waits for, which may write there until it starts.
    """
    if data.is_hf:
        found = data_set(data.path)
        return _reference(data, "hf", found.uri, found.repo.rpartition("/")[2], is_dir=True)
    bucket, key = split(data.path)
    bucket = parse_address(bucket).url  # in Azure, with the account that only this machine's environment may name
    bare = f"{bucket}/{key}".rstrip("/")
    uri = f"{bare}/" if bare in awaited else f"{bucket}/{key}"
    try:
        if not any(f"{bare}/".startswith(f"{folder}/") for folder in awaited):
            _look_for(data, opener(bucket), key)
    except (CredentialsError, AccessDeniedError) as error:
        output.report_once(
            f"{data!r} cannot be checked from here; only the job will see whether it exists: {error.what}"
        )
    name = key.rstrip("/").rpartition("/")[2] or bucket.rpartition("/")[2]
    is_dir = uri.endswith("/")
    return _reference(data, "prefix" if is_dir else "object", uri, name, is_dir=is_dir)


def split(uri: str) -> tuple[str, str]:
    """Split ``gs://bucket/a/b`` into the bucket's address, ``gs://bucket``, and the key, ``a/b``."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


def data_set(uri: str) -> DataSet:
    """Read the address of a data set.

    A plus sign is a plus sign, as in ``split=train+test``; percent signs may be written as they are (``train[:10%]``).
    """
    from urllib.parse import unquote

    repo, _, query = uri.removeprefix("hf://").partition("?")
    repo = unquote(repo).rstrip("/")
    words = repo.split("/")
    if not repo or not (repo.startswith("/") or (len(words) <= 2 and all(words))):
        raise OptionError(
            f"{uri!r} does not name a data set",
            why="its name is one word, an owner and a word (owner/name), or the absolute path of a folder in the job",
        )
    found: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name not in _PARAMETERS:
            from difflib import get_close_matches  # 2 ms; only on the way to an error

            near = get_close_matches(name, _PARAMETERS, 1)
            raise OptionError(
                f"{uri!r} has an unknown parameter {name!r}",
                why=f"known: {', '.join(_PARAMETERS)}",
                next=f"write {near[0]}={value}" if near else f"remove {pair}",
            )
        if name in found:
            raise OptionError(f"{uri!r} has {name!r} twice")
        found[name] = unquote(value)
    return DataSet(repo, **found)


def _look_for(data: Data, store: Store, key: str) -> None:
    bare = data.path.rstrip("/")
    try:
        if data.is_dir and not _holds(store, key):
            raise _missing(data, "there is nothing below it", bare if _exists(store, key.rstrip("/")) else "")
        if not data.is_dir and not _exists(store, key):
            raise _missing(data, "there is no such object", f"{bare}/" if _holds(store, f"{key}/") else "")
    except StoreError as error:
        if error.code != "store-missing":
            raise
        raise _missing(data, error.what, "") from error


def _exists(store: Store, key: str) -> bool:
    return bool(key) and store.entry(key) is not None


def _holds(store: Store, prefix: str) -> bool:
    return next(iter(store.entries(prefix)), None) is not None


def _missing(data: Data, why: str, other: str) -> DataMissingError:
    """Return the error for missing data; ``other`` is the path with or without a slash, if that exists."""
    return DataMissingError(
        f"{data_.raw_of(data)!r} does not exist",
        why=f"{why}; {other} exists" if other else why,
        next=f"write Data({other!r})" if other else "check the spelling; nothing was started",
    )


def _reference(data: Data, kind: Kind, uri: str, name: str, *, is_dir: bool) -> DataRef:
    return DataRef(
        kind=kind,
        uri=uri,
        path=data_.raw_of(data),
        name=name,
        is_dir=is_dir,
        fuse=data.fuse,
        trust=data.hf_trust_remote_code,
    )
