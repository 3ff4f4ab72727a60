"""A certificate authority of the test cluster's own, and what it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# The last one is how pods of a real cluster call the server.
HERE = ("127.0.0.1", "localhost", "10.0.0.1", "kubernetes.default.svc")

_SIGNING = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Pair(NamedTuple):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for servers and clients; everybody in the test cluster trusts ``certificate`` alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("kinetic test cluster")
        signed = (
            _unsigned(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            # Python 3.13 insists on what follows, wherever nobody tells it not to.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_SIGNING, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        organization: str = "",
        folder: Path | None = None,
        stem: str = "",
        hosts: tuple[str, ...] = HERE,
        days: tuple[float, float] = (-1, 1),
    ) -> Pair:
        """Make a key and a certificate that is good for serving on this machine, and for being the user ``name``.

        It is valid between two moments, ``days`` from now.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        signed = (
            _unsigned(_name(name, organization), self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair((folder or self._folder) / f"{stem or name}.crt", (folder or self._folder) / f"{stem or name}.key")
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        write_key(key, pair.key)
        return pair


def write_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.TraditionalOpenSSL, plain))


def signing_key(path: Path) -> Path:
    """Write a key that tokens of service accounts are signed with."""
    write_key(ec.generate_private_key(ec.SECP256R1()), path)
    return path


def _name(common: str, organization: str = "") -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: tuple[float, float] = (-1, 1),  # clocks differ a little
) -> x509.CertificateBuilder:
    begins, ends = (dt.datetime.now(dt.UTC) + dt.timedelta(days=each) for each in days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
