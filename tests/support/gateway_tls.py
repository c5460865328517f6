"""A certificate authority for tests, with valid and invalid server and client certificates."""

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = dt.datetime.now(tz=dt.UTC)
DAY = dt.timedelta(days=1)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class Pem:
    """A certificate and its key on disk."""

    certificate: Path
    key: Path


class TestAuthority:
    """Signs certificates into a folder."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        built = self._builder(self._key, self._name, NOW + DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = built.add_extension(usage, critical=True).sign(self._key, hashes.SHA256())
        self.path = folder / "ca.pem"
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def _builder(
        self, key: ec.EllipticCurvePrivateKey, subject: x509.Name, until: dt.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 3 * DAY)
            .not_valid_after(until)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )

    def issue(
        self,
        name: str,
        *uris: str,
        usage: x509.ObjectIdentifier = CLIENT,
        expired: bool = False,
        dns: str = "",
    ) -> Pem:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        if usage == SERVER:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        if dns:
            names.append(x509.DNSName(dns))
        builder = self._builder(key, subject, NOW - DAY if expired else NOW + DAY)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        pem = Pem(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pem.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        pem.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pem

    def client_context(self, pem: Pem | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.path))
        if pem is not None:
            context.load_cert_chain(pem.certificate, pem.key)
        return context
