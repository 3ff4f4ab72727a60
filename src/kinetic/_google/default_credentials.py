"""The file of Google's application default credentials: where it is, and what it says of itself; no secret is read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def file_of(environ: Mapping[str, str]) -> Path | None:
    """Return the file with application default credentials, or None when there is none."""
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        return Path(named)
    folder = Path(environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config/gcloud")
    file = folder / "application_default_credentials.json"
    return file if os.path.isfile(file) else None  # ``su`` may leave a folder that only its user may enter


def kind_of(environ: Mapping[str, str]) -> str:
    """Return what kind of login the file of our credentials is, as in "authorized_user"; "" where it cannot be read."""
    return str(_read(file_of(environ)).get("type") or "")


def project_of(environ: Mapping[str, str]) -> str:
    """Return the project that the file of our credentials names, "" for none."""
    page = _read(file_of(environ))
    return str(page.get("project_id") or page.get("quota_project_id") or "")


def _read(file: Path | None) -> dict[str, Any]:
    try:
        page = json.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, ValueError):
        return {}
    return page if isinstance(page, dict) else {}
