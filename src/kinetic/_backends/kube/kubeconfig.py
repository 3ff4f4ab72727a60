"""Kubeconfig files: read, never written. Several are one, as for kubectl: the first that says something wins."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._backends.kube.access import Access, Anonymous, Certificate, Credential, Fixed, TokenFile
from kinetic._backends.kube.plugins import Plugin
from kinetic.errors import CredentialsError, SettingsError

Page = dict[str, Any]


class _Entry(NamedTuple):
    """A cluster, a user or a context, and the folder that relative paths in it count from."""

    page: Page
    folder: Path


def of_context(name: str = "", environ: Mapping[str, str] = os.environ) -> Access:
    """Return the access that a context describes.

    Args:
        name: The context; "" for the current one.
        environ: Where KUBECONFIG may name files.

    Raises:
        SettingsError: No file has such a context, or what it names is missing.
        CredentialsError: What it says about us cannot be used.
    """
    files = files_of(environ)
    pages = [(path, _read(path)) for path in files if path.is_file()]
    where = ", ".join(map(str, files))
    if not pages:
        raise SettingsError(
            "there is no kubeconfig", why=f"looked for {where}", next="set KUBECONFIG to the file of your cluster"
        )
    chosen = name or next((str(page["current-context"]) for _, page in pages if page.get("current-context")), "")
    contexts = _named(pages, "contexts", "context")
    if chosen not in contexts:
        raise _no_context(chosen, contexts, where)
    context = contexts[chosen].page
    cluster = _must(_named(pages, "clusters", "cluster"), context, "cluster", chosen, where)
    user = _must(_named(pages, "users", "user"), context, "user", chosen, where)
    return _access(chosen, str(context.get("namespace") or ""), cluster, user)


def files_of(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that are read, whether they exist or not."""
    written = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part).expanduser() for part in written] or [Path.home() / ".kube" / "config"]


def _read(path: Path) -> Page:
    import yaml  # 20 ms; only for a kubeconfig

    try:
        page = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(
            "a kubeconfig cannot be read", why=f"{path}: {error}", next="correct it, or name another in KUBECONFIG"
        ) from error
    if not isinstance(page, dict):
        raise SettingsError("a kubeconfig cannot be read", why=f"{path} is no table", next="name another in KUBECONFIG")
    return page


def _named(pages: list[tuple[Path, Page]], plural: str, single: str) -> dict[str, _Entry]:
    found: dict[str, _Entry] = {}
    for path, page in pages:
        for entry in page.get(plural) or ():
            found.setdefault(str(entry.get("name")), _Entry(entry.get(single) or {}, path.parent))
    return found


def _must(entries: dict[str, _Entry], context: Page, kind: str, chosen: str, where: str) -> _Entry:
    name = str(context.get(kind) or "")
    if kind == "user" and not name:
        return _Entry({}, Path())  # nobody: some servers ask nothing
    if name in entries:
        return entries[name]
    raise SettingsError(
        f"the context {chosen} names the {kind} {name!r}, which is nowhere",
        why=f"looked in {where}",
        next="correct the kubeconfig, or name another context in KINETIC_KUBE_CONTEXT",
    )


def _no_context(chosen: str, contexts: dict[str, _Entry], where: str) -> SettingsError:
    what = f"there is no context {chosen!r}" if chosen else "no context is the current one"
    return SettingsError(
        what,
        why=f"{where} has {', '.join(contexts) or 'none'}",
        next=f"export KINETIC_KUBE_CONTEXT={next(iter(contexts), 'NAME')}",
    )


def _access(name: str, namespace: str, cluster: _Entry, user: _Entry) -> Access:
    page = cluster.page
    server = str(page.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise SettingsError(
            f"the cluster of the context {name} has no address", why=f"server is {server!r}", next="correct it"
        )
    credential = _credential(name, user, page)
    return Access(
        server=server,
        about=f"the context {name}",
        credential=credential,
        authority=_bytes(cluster, "certificate-authority") or b"",
        verify=not page.get("insecure-skip-tls-verify", False),
        server_name=str(page.get("tls-server-name") or ""),
        certificate=_certificate(user),
        namespace=namespace,
        proxy=str(page.get("proxy-url") or ""),
    )


def _credential(name: str, user: _Entry, cluster: Page) -> Credential:
    page = user.page
    if page.get("as"):  # to go on would be to act with other rights than those that were chosen
        raise CredentialsError(
            f"the context {name} acts as {page['as']}, and kinetic acts as nobody but itself",
            why="its user has the field as",
            next=f"name a context with credentials of {page['as']}, or take the field out of the kubeconfig",
        )
    if page.get("tokenFile"):
        return TokenFile(user.folder / str(page["tokenFile"]))
    if page.get("token"):
        return Fixed(f"Bearer {page['token']}")
    if page.get("exec"):
        return Plugin.of_page(page["exec"], user.folder, cluster, f"the context {name}")
    if page.get("username"):
        pair = f"{page['username']}:{page.get('password', '')}"
        return Fixed(f"Basic {base64.b64encode(pair.encode()).decode()}")
    if page.get("auth-provider"):
        raise CredentialsError(
            f"the context {name} logs in by an auth-provider, which Kubernetes has removed",
            why=f"its user has auth-provider {page['auth-provider'].get('name')!r}",
            next="log in again with the cluster's own tool: it writes an exec plug-in today",
        )
    return Anonymous()


def _certificate(user: _Entry) -> Certificate | None:
    chain, key = _bytes(user, "client-certificate"), _bytes(user, "client-key")
    return Certificate(chain, key) if chain and key else None


def _bytes(entry: _Entry, field: str) -> bytes | None:
    """Return what stands in a page, in base 64, or in the file that it names."""
    written = entry.page.get(f"{field}-data")
    try:
        if written:
            return base64.b64decode(written)
        path = entry.page.get(field)
        return (entry.folder / str(path)).read_bytes() if path else None
    except (OSError, ValueError) as error:
        raise CredentialsError(
            f"{field} of a kubeconfig cannot be read", why=str(error), next="log in to the cluster again"
        ) from error
