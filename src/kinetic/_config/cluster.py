"""What applies to all jobs of one cluster: as whom they run, in which queue, on which nodes, for how long.

Each field of ``ClusterSettings`` is read from a variable (``KINETIC_QUEUE``), else from the profile (``queue``). The
first that is not empty wins. In a profile, values may also be what JSON has for them: a list, an object, a number.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from kinetic._config.options import ResourceRequests, SettingValue, read_resources
from kinetic._config.variables import CLUSTER_SETTINGS, read_variable
from kinetic._wire import NamedTuple, dataclass
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._config.profiles import Profile

DAY_SECONDS = 86_400
HOUR_SECONDS = 3600
FIELDS = tuple(CLUSTER_SETTINGS)
_MAX_SECONDS = 2**31 - 1  # as Kubernetes counts the seconds until it removes a job
_MAX_NAME, _MAX_LABEL = 253, 63  # characters
_WORD = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_NAME = rf"{_WORD}(?:\.{_WORD})*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REPOSITORY = r"[A-Za-z0-9.-]+(?::[0-9]+)?(?:/[a-z0-9][a-z0-9._-]*)+"
_PAIRS_RULE = "expected key=value,key2=value2; or none"
_OURS = "kinetic/"  # the prefix of what kinetic writes to its objects, beside the labels it finds them by
_RESERVED = {
    "app": "kinetic finds its jobs by it",
    "job-id": "kinetic finds its jobs by it",
    "kueue.x-k8s.io/queue-name": "KINETIC_QUEUE sets it",
}
_LISTS = (
    "pull_secrets",
    "tolerations",
    "config_maps",
    "volume_claims",
)  # of the settings; in JSON they have no other form
_CLAIM = re.compile(r"(?P<claim>[^/:]+)(?:/(?P<folder>[^:]+))?(?P<read_only>:ro)?")
_OF_THE_POD = ("/dev", "/kinetic", "/proc", "/sys")  # no volume may hide them
_ITS_OWN = ("/", "/tmp", "/var/tmp")  # nor these, but there may be one below: in a warm pod, they are emptied # noqa: S108
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")  # of taints
_LOGIN_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # as getpass asks for them


class VolumeClaim(NamedTuple):
    """A PersistentVolumeClaim of the namespace, or a folder of it, and where pods have it."""

    path: str
    claim: str
    folder: str = ""  # below the volume; "" for all of it
    read_only: bool = False


class ClusterSettings(NamedTuple):
    """What applies to all jobs of one cluster."""

    service_account: str = ""  # "" for "kinetic" where it exists, else "default"
    queue: str = ""  # a LocalQueue of Kueue, or ""
    priority_class: str = ""
    pull_secrets: tuple[str, ...] = ()  # names of Secrets with which images are pulled
    image_repo: str = ""  # where images are built for projects; "" for nowhere
    store_secret: str = ""  # name of a Secret with credentials for the store; "" for workload identity
    node_selector: Mapping[str, str] | None = None  # labels of nodes; None for Google's labels of the accelerator
    tolerations: tuple[
        Mapping[str, str], ...
    ] = ()  # of pods, besides those for the accelerator, as Kubernetes has them
    labels: Mapping[str, str] | None = None  # of all that is made for a job, besides kinetic's own
    annotations: Mapping[str, str] | None = None  # of pods
    config_maps: tuple[str, ...] = ()  # names of ConfigMaps whose entries are variables of every pod
    volume_claims: tuple[VolumeClaim, ...] = ()  # what every pod mounts
    gpu_resource: str = ""  # what the cluster calls a GPU; "" for nvidia.com/gpu
    scheduler: str = ""  # of pods; "" for that of Kubernetes
    runtime_class: str = ""  # a RuntimeClass, for pods that need another container runtime
    cpu_disk: int = 0  # bytes of disk that a job without an accelerator requests where it does not say; 0 for 1 GiB
    ttl_seconds: int = DAY_SECONDS  # after a job's end, when the cluster removes what is left
    most_attempts: int | None = None  # after so many interrupted attempts a job fails; None for no limit
    builds_image: bool = False  # of a job of ours that builds an image: it may run as an account that may push

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), **{name: list(getattr(self, name)) for name in _LISTS}}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ClusterSettings:
        """Read plain JSON; fields of other versions are ignored."""
        known = {name: fields[name] for name in cls._fields if name in fields}
        lists = {name: tuple(known.get(name) or ()) for name in _LISTS}
        lists["volume_claims"] = tuple(VolumeClaim(*each) for each in lists["volume_claims"])
        return cls(**{**known, **lists})

    def volume_at(self, folder: str) -> str:
        """Return the path of the volume in which pods can write to a folder that outlives them, or ""."""
        above = [each for each in self.volume_claims if f"{folder}/".startswith(f"{each.path}/")]
        inner = max(above, key=lambda each: len(each.path), default=None)
        return inner.path if inner is not None and not inner.read_only else ""


@dataclass(frozen=True)
class PodRequirements:
    """What a job asks of a cluster besides hardware; a machine has no use for it."""

    image: str = ""
    requirements: dict[str, Any] | None = None  # an Artifact as plain JSON: what is installed before anything else
    needs: ResourceRequests = field(default_factory=ResourceRequests)  # of each host
    settings: ClusterSettings = field(default_factory=ClusterSettings)
    python: str = ""  # the client's Python as X.Y, which the image must have
    require_accelerator: bool = True  # whether the job fails if its GPU or TPU is not available
    lock: str = ""  # where the lock of its image is in the store; "" for an image that was not built from one

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "needs": list(self.needs), "settings": self.settings.to_json()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> PodRequirements:
        """Read plain JSON, as a launch carries it; fields of other versions are ignored."""
        fields = fields or {}
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        known["needs"] = ResourceRequests(*known.get("needs") or ())
        known["settings"] = ClusterSettings.from_json(known.get("settings") or {})
        return cls(**known)


def read_settings(profile: Profile | None, environ: Mapping[str, str]) -> ClusterSettings:
    """Return the settings for jobs on a cluster."""
    found = {field: look_up(field, profile, environ).value for field in FIELDS}
    fields: dict[str, Any] = {field: value for field, value in found.items() if value is not None}
    if "ttl_hours" in fields:
        fields["ttl_seconds"] = max(1, round(fields.pop("ttl_hours") * HOUR_SECONDS))
    return ClusterSettings(**fields)


def look_up(field: str, profile: Profile | None, environ: Mapping[str, str]) -> SettingValue:
    """Return one of ``FIELDS`` and where it is set."""
    variable = f"KINETIC_{field.upper()}"
    if text := read_variable(variable, environ):
        action = f"export {variable}={example_of(field)}     or unset it"
        return SettingValue(checked_value(field, text, f"{variable}={text!r}", action), variable)
    text = getattr(profile, field, "")
    if profile is None or not text:
        return SettingValue(None, "default")
    source = f"profile {profile.name}"
    action = f"set {variable} to a valid value, or correct it in {source}, for example to {example_of(field)}"
    return SettingValue(checked_value(field, text, f"{field}={text!r} in {source}", action), source)


def owner(environ: Mapping[str, str]) -> str:
    """Return who submits: KINETIC_OWNER, else the name that the user has on this machine."""
    names = (read_variable("KINETIC_OWNER", environ), *map(environ.get, _LOGIN_NAMES))
    for name in names:
        if name and name.strip():
            return name.strip()
    import pwd

    with contextlib.suppress(LookupError, OSError):  # a container's user need not be in any list
        return pwd.getpwuid(os.getuid()).pw_name
    return f"user-{os.getuid()}"


def checked_value(field: str, text: str, written: str, action: str) -> object:
    """Return what a text means for one of ``FIELDS``.

    If it is invalid, the error says what was ``written`` and where, as in "KINETIC_TTL_HOURS='soon'", and the action.
    """
    kind = _KINDS[field]
    try:
        return kind.read(text.strip())
    except ValueError as error:
        raise OptionError(f"{written} is not a valid {kind.what}", why=str(error), next=action) from None


def example_of(field: str) -> str:
    """Return a valid value."""
    return _KINDS[field].example


def as_typed(value: object) -> str:
    """Return one of several values of a field as one types it."""
    if isinstance(value, VolumeClaim):
        folder, read_only = f"/{value.folder}" if value.folder else "", ":ro" if value.read_only else ""
        return f"{value.path}={value.claim}{folder}{read_only}"
    if isinstance(value, Mapping):  # a toleration
        equal, effect = f"={value['value']}" if "value" in value else "", value.get("effect", "")
        return f"{value['key']}{equal}{f':{effect}' if effect else ''}"
    return str(value)


def _name(text: str) -> str:
    if re.fullmatch(_NAME, text) and len(text) <= _MAX_NAME:
        return text
    raise ValueError(
        "a name has lower-case letters, digits, '-' and '.', and begins and ends with a letter or digit; "
        f"at most {_MAX_NAME} characters"
    )


def _label_name(text: str) -> str:
    """Read a name that is also a label's value: Kueue finds the queue of a job by one."""
    if len(_name(text)) <= _MAX_LABEL:
        return text
    raise ValueError(f"it has {len(text)} characters, and the label that names it fits at most {_MAX_LABEL}")


def _names(text: str) -> tuple[str, ...] | None:
    return () if text == "none" else tuple(dict.fromkeys(_name(word) for word in _parts(text))) or None


def _repository(text: str) -> str:
    if re.fullmatch(_REPOSITORY, text):
        return text
    raise ValueError("expected registry/name in lower-case letters, without https:// and without a tag")


def _labels(text: str) -> dict[str, str]:
    return _pairs(text, "label", _is_label_value)


def _annotations(text: str) -> dict[str, str]:
    return _not_ours(_pairs(text, "annotation", lambda _: True))


def _pairs(text: str, noun: str, is_valid: Callable[[str], bool]) -> dict[str, str]:
    if text == "none":
        return {}
    found: dict[str, str] = {}
    for part in _parts(text):
        key, separator, value = (word.strip() for word in part.partition("="))
        if not separator or not _is_label_key(key) or not is_valid(value):
            raise ValueError(f"{part!r} is not a valid {noun}; {_PAIRS_RULE}")
        if found.setdefault(key, value) != value:
            raise ValueError(f"{key} has two values, {found[key]!r} and {value!r}: it can have one")
    if not found:
        raise ValueError(_PAIRS_RULE)
    return found


def _not_ours(pairs: dict[str, str]) -> dict[str, str]:
    for key in pairs:
        if why := _RESERVED.get(key) or ("kinetic writes those itself" if key.startswith(_OURS) else ""):
            raise ValueError(f"{key} cannot be set: {why}")
    return pairs


def _tolerations(text: str) -> tuple[dict[str, str], ...]:
    """Read taints as kubectl writes them; without a value, or without an effect, any will do."""
    return () if text == "none" else tuple(map(_toleration, _parts(text)))


def _toleration(text: str) -> dict[str, str]:
    taint, colon, effect = (word.strip() for word in text.partition(":"))
    key, separator, value = (word.strip() for word in taint.partition("="))
    if not _is_label_key(key) or not _is_label_value(value) or (colon and effect not in _EFFECTS):
        raise ValueError(f"{text!r} is not a taint: expected key=value:EFFECT, with one of {', '.join(_EFFECTS)}")
    equal = {"operator": "Equal", "value": value} if separator else {"operator": "Exists"}
    return {"key": key, **equal, **({"effect": effect} if effect else {})}


def _resource(text: str) -> str:
    if "/" in text and _is_label_key(text):
        return text
    raise ValueError("expected what nodes call it (kubectl describe node), as in nvidia.com/mig-1g.10gb")


def _volume_claims(text: str) -> tuple[VolumeClaim, ...]:
    found = () if text == "none" else tuple(map(_volume_claim, _parts(text)))
    for path in (paths := [each.path for each in found]):
        if paths.count(path) > 1:
            raise ValueError(f"{path} is there twice, and one volume can be at a path")
    return found


def _volume_claim(text: str) -> VolumeClaim:
    path, _, source = (word.strip() for word in text.partition("="))
    found = _CLAIM.fullmatch(source)
    if not path.startswith("/") or ":" in path or not found or ".." in source.split("/"):
        raise ValueError(f"{text!r} is not a volume: expected /path=claim, /path=claim/folder, or /path=claim:ro")
    path = os.path.normpath(f"/{path.lstrip('/')}")
    if path in _ITS_OWN or any(path == own or path.startswith(f"{own}/") for own in _OF_THE_POD):
        raise ValueError(f"{path} cannot be a volume: it would hide what every pod needs")
    return VolumeClaim(path, _name(found["claim"]), (found["folder"] or "").strip("/"), bool(found["read_only"]))


def _disk(text: str) -> int:
    try:
        return read_resources({"disk": text}).disk_bytes or 0
    except OptionError as error:
        raise ValueError(error.why) from None


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise ValueError("expected a number that is more than 0, as in 24 or 0.5")
    if hours * HOUR_SECONDS > _MAX_SECONDS:
        raise ValueError(f"a cluster counts at most {_MAX_SECONDS // HOUR_SECONDS} hours")
    return hours


def _attempts(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < _MAX_LABEL and int(text) > 0:
        return int(text)
    raise ValueError("expected a whole number of at least 1")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _is_label_key(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    prefix_fits = bool(re.fullmatch(_NAME, prefix)) and len(prefix) <= _MAX_NAME if slash else True
    return prefix_fits and bool(name) and _is_label_value(name)


def _is_label_value(text: str) -> bool:
    return not text or (bool(re.fullmatch(_LABEL, text)) and len(text) <= _MAX_LABEL)


class _Kind(NamedTuple):
    what: str
    example: str
    read: Callable[[str], object]  # raises ValueError with the reason


_KINDS = {
    "service_account": _Kind("service account name", "kinetic", _name),
    "queue": _Kind("queue name", "team", _label_name),
    "priority_class": _Kind("priority class name", "high", _name),
    "pull_secrets": _Kind("list of Secret names", "registry,registry2", _names),
    "image_repo": _Kind("repository for images", "us-docker.pkg.dev/team/kinetic/jobs", _repository),
    "store_secret": _Kind("Secret name", "store", _name),
    "node_selector": _Kind("node selector", "pool=gpus,zone=a", _labels),
    "tolerations": _Kind("list of taints", "dedicated=research:NoSchedule,gpu", _tolerations),
    "labels": _Kind("list of labels", "team=vision,cost-center=42", lambda text: _not_ours(_labels(text))),
    "annotations": _Kind("list of annotations", "linkerd.io/inject=disabled", _annotations),
    "config_maps": _Kind("list of ConfigMap names", "proxy,packages", _names),
    "volume_claims": _Kind("list of volumes", "/datasets=datasets:ro,/scratch=scratch", _volume_claims),
    "gpu_resource": _Kind("name of a resource", "nvidia.com/mig-1g.10gb", _resource),
    "scheduler": _Kind("scheduler name", "volcano", _name),
    "runtime_class": _Kind("runtime class name", "nvidia", _name),
    "cpu_disk": _Kind("size", "10Gi", _disk),
    "ttl_hours": _Kind("number of hours", "24", _hours),
    "most_attempts": _Kind("number of attempts", "10", _attempts),
}
