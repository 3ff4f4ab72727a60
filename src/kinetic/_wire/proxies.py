"""Which proxy the environment names for an address, as other programs read it."""

from __future__ import annotations

import contextlib
import ipaddress
import urllib.parse
import urllib.request


def proxy_for(url: str) -> str:
    """Return the address of the proxy for a URL, as ``http://host:3128``; "" for none."""
    parts, proxies = urllib.parse.urlsplit(url), urllib.request.getproxies()
    found, host = proxies.get(parts.scheme) or proxies.get("all") or "", parts.hostname or ""
    if not found or urllib.request.proxy_bypass(host) or _is_in_networks(host, proxies.get("no", "")):
        return ""
    return found if "://" in found else f"http://{found}"


def _is_in_networks(host: str, networks: str) -> bool:
    """Return whether an address is in one of some networks, as in 10.0.0.0/8: curl knows them, urllib does not."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for written in (part.strip() for part in networks.split(",") if "/" in part):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(written, strict=False):
                    return True
    return False
