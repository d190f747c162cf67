"""Certificates made while tests run: an authority, and the certificates that it signs for 127.0.0.1."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Signed:
    """PEM files. `both` holds the key and the certificate, as Kafka and MongoDB want them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority, whose own certificate is in `file`."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, self._name, self._key.public_key())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, host: str = HOST, password: str | None = None) -> Signed:
        """Sign a certificate for this address; `password` encrypts the key."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            _builder(_named(name), self._name, key.public_key())
            .add_extension(address, critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )
        encryption = serialization.BestAvailableEncryption(password.encode()) if password else None
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption or serialization.NoEncryption()
        )
        signed = Signed(*[self._directory / f"{name}{ending}" for ending in (".crt", ".key", ".pem")])
        signed.certificate.write_bytes(certificate)
        signed.key.write_bytes(plain)
        signed.both.write_bytes(plain + certificate)
        return signed


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
    )
