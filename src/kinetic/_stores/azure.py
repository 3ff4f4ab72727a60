"""Containers of Azure: whose account an address names, and who we are to it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.errors import OptionError

if TYPE_CHECKING:
    from obstore.store import AzureStore

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}(\.[a-z0-9.-]+)?")  # of Azure, with its host in another cloud than the public one

_PUBLIC = ".blob.core.windows.net"  # the hosts of the public cloud; national ones have others

RIGHTS = "the role Storage Blob Data Contributor on the container"
LOGIN = "run az login, or set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"

# With one of them, obstore has credentials of its own: a token, a service principal, a workload or managed identity.
_OWN = ("AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT")


def account_of(url: str, named: str) -> str:
    """Return the storage account of an address of Azure: that of the environment where it names none."""
    account = (named or settings()["AccountName"]).removesuffix(_PUBLIC)
    if not _ACCOUNT.fullmatch(account):
        bucket, _, prefix = url.partition("://")[2].partition("/")
        whole = f"az://{bucket.partition('@')[0]}@your-account/{prefix or 'folder'}"
        raise OptionError(
            f"{url!r} names no storage account",
            why=f"{account!r} is not a valid name of one" if account else "AZURE_STORAGE_ACCOUNT is not set either",
            next=f"{whole}, or export AZURE_STORAGE_ACCOUNT=your-account",
        )
    return account


def settings(wanted: str = "") -> dict[str, str]:
    """Return what the environment says of a storage account of Azure, in the words of its connection strings.

    Nothing where it is about another account than the ``wanted`` one: a key and an endpoint are of their account only.
    """
    read = os.environ.get
    pairs = [part.partition("=") for part in read("AZURE_STORAGE_CONNECTION_STRING", "").split(";") if "=" in part]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    account = read("AZURE_STORAGE_ACCOUNT") or read("AZURE_STORAGE_ACCOUNT_NAME")
    if account and _name(account) != _name(_account(found)):
        found = {"AccountName": account}
    key = read("AZURE_STORAGE_KEY") or read("AZURE_STORAGE_ACCOUNT_KEY") or read("AZURE_STORAGE_ACCESS_KEY")
    shared = read("AZURE_STORAGE_SAS_TOKEN") or read("AZURE_STORAGE_SAS_KEY")
    more = {"AccountKey": key, "SharedAccessSignature": shared, "BlobEndpoint": read("AZURE_STORAGE_ENDPOINT")}
    found |= {name: value for name, value in more.items() if value}
    found["AccountName"] = _account(found)
    return {} if wanted and found["AccountName"] and _name(wanted) != _name(found["AccountName"]) else found


def _account(found: dict[str, str]) -> str:
    """Return the account of settings, with its host; with a shared access signature, only the endpoint names it."""
    account, suffix = found.get("AccountName", ""), found.get("EndpointSuffix")
    host = found.get("BlobEndpoint", "").partition("://")[2].partition("/")[0]
    if account:
        return f"{account}.blob.{suffix}" if suffix else account
    return host if ".blob." in host else ""


def _name(account: str) -> str:
    return account.partition(".")[0]


def client(bucket: str, options: dict[str, Any]) -> AzureStore:
    """Make the client of "container@account"; no request is sent yet."""
    from obstore.store import AzureStore

    container, _, host = bucket.partition("@")
    found = settings(host)
    host = host.replace(".dfs.", ".blob.") if "." in host else f"{host}{_PUBLIC}"
    # Always an endpoint: obstore takes that of the environment, which may be another account's.
    endpoint = found.get("BlobEndpoint") or f"https://{host}"
    key, shared = found.get("AccountKey"), found.get("SharedAccessSignature", "").lstrip("?")
    config: Any = {"account_name": _name(host), "endpoint": endpoint.rstrip("/")}
    config |= {"account_key": key} if key else {}
    if shared and not key:  # as a setting it would come behind a service principal and the identity that AKS gives pods
        options["credential_provider"] = lambda: {"sas_token": shared, "expires_at": None}
    if not (key or shared or any(map(os.environ.get, _OWN))) and _has_login():
        config["use_azure_cli"] = True
    options["client_options"]["allow_http"] = endpoint.startswith("http://")
    return AzureStore(container, config=config, **options)


def _has_login() -> bool:
    """Return whether the ``az`` command can be asked for tokens; it has a file of logins before the first one, too."""
    import json
    import shutil

    with contextlib.suppress(OSError, ValueError, AttributeError):
        logins = json.loads((_folder() / "azureProfile.json").read_text("utf-8-sig"))
        return bool(logins.get("subscriptions") and shutil.which("az"))
    return False


def _folder() -> Path:
    return Path(os.environ.get("AZURE_CONFIG_DIR") or Path.home() / ".azure")


def sources() -> str:
    """Return where credentials were looked for."""
    found = settings()
    shown = [f"{name} ({'set' if os.environ.get(name) else 'not set'})" for name in _OWN[1:3]]
    keys = [f"{name} {'there' if found.get(name) else 'none'}" for name in ("AccountKey", "SharedAccessSignature")]
    return (
        f"AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN ({', '.join(keys)}, of account "
        f"{found['AccountName'] or 'not named'}), {', '.join(shown)}, the az command's login in {_folder()} "
        f"({'there' if _has_login() else 'none'}), the metadata server of Azure's machines"
    )
