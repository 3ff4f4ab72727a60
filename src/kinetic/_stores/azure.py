"""Containers of Azure: whose account an address names, and who we are to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic.errors import OptionError

if TYPE_CHECKING:
    from obstore.store import AzureStore

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}(\.[a-z0-9.-]+)?")  # of Azure, with its host in another cloud than the public one

_PUBLIC = "core.windows.net"  # the hosts of the public cloud; national ones have others

RIGHTS = "the role Storage Blob Data Contributor on the container"
LOGIN = "run az login, or set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN"

# With one of them, obstore has credentials of its own: a token, a service principal, a workload or managed identity.
_OWN = ("AZURE_STORAGE_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT")


def account_of(url: str, named: str) -> str:
    """Return the storage account of an address of Azure: that of the environment where it names none."""
    found = settings()
    suffix = found.get("EndpointSuffix", _PUBLIC)
    account = named or found.get("AccountName", "") + (f".blob.{suffix}" if suffix != _PUBLIC else "")
    if not _ACCOUNT.fullmatch(account):
        bucket, _, prefix = url.partition("://")[2].partition("/")
        whole = f"az://{bucket.partition('@')[0]}@your-account/{prefix or 'folder'}"
        raise OptionError(
            f"{url!r} names no storage account",
            why=f"{account!r} is not a valid name of one" if account else "AZURE_STORAGE_ACCOUNT is not set either",
            next=f"{whole}, or export AZURE_STORAGE_ACCOUNT=your-account",
        )
    return account


def settings() -> dict[str, str]:
    """Return what the environment says of a storage account of Azure, in the words of its connection strings."""
    read = os.environ.get
    pairs = [part.partition("=") for part in read("AZURE_STORAGE_CONNECTION_STRING", "").split(";") if "=" in part]
    found = {name.strip(): value.strip() for name, _, value in pairs}
    account = read("AZURE_STORAGE_ACCOUNT") or read("AZURE_STORAGE_ACCOUNT_NAME")
    if account and account != found.get("AccountName"):
        found = {"AccountName": account}  # a key is of its account only
    key = read("AZURE_STORAGE_KEY") or read("AZURE_STORAGE_ACCOUNT_KEY") or read("AZURE_STORAGE_ACCESS_KEY")
    shared = read("AZURE_STORAGE_SAS_TOKEN") or read("AZURE_STORAGE_SAS_KEY")
    more = {"AccountKey": key, "SharedAccessSignature": shared, "BlobEndpoint": read("AZURE_STORAGE_ENDPOINT")}
    return found | {name: value for name, value in more.items() if value}


def client(bucket: str, options: dict[str, Any]) -> AzureStore:
    """Make the client of "container@account"; no request is sent yet."""
    from obstore.store import AzureStore

    container, _, host = bucket.partition("@")
    account, dot, _ = host.partition(".")
    found = settings()
    if found.get("AccountName", account) != account:
        found = {}  # of another account
    endpoint = found.get("BlobEndpoint") or (f"https://{host.replace('.dfs.', '.blob.')}" if dot else "")
    key, shared = found.get("AccountKey"), found.get("SharedAccessSignature", "").lstrip("?")
    config: Any = {"account_name": account}
    config |= {"endpoint": endpoint.rstrip("/")} if endpoint else {}
    config |= {"account_key": key} if key else {"sas_key": shared} if shared else {}
    if not (key or shared or any(map(os.environ.get, _OWN))) and _has_login():
        config["use_azure_cli"] = True
    options["client_options"]["allow_http"] = endpoint.startswith("http://")
    return AzureStore(container, config=config, **options)


def _has_login() -> bool:
    """Return whether the ``az`` command can be asked for tokens."""
    import shutil

    return bool(shutil.which("az")) and (_folder() / "azureProfile.json").exists()


def _folder() -> Path:
    return Path(os.environ.get("AZURE_CONFIG_DIR") or Path.home() / ".azure")


def sources() -> str:
    """Return where credentials were looked for."""
    found = settings()
    shown = [f"{name} ({'set' if os.environ.get(name) else 'not set'})" for name in _OWN[1:3]]
    keys = [f"{name} {'there' if found.get(name) else 'none'}" for name in ("AccountKey", "SharedAccessSignature")]
    return (
        f"AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN ({', '.join(keys)}, of account "
        f"{found.get('AccountName', 'not named')}), {', '.join(shown)}, the az command's login in {_folder()} "
        f"({'there' if _has_login() else 'none'}), the metadata server of Azure's machines"
    )
