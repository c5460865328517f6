"""An S3 server that enforces the rendered policies, for real clients with credentials of roles.

Also here: a certificate for a test server on this machine.

Each signed request becomes the request of a policy by what is on the wire: method, query and
headers. The simulator decides it, as S3 decides it before any precondition.
"""

import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.memory_bucket.server import Guard, GuardedCall, MemoryServer, serve_memory
from support.policies_live import BUCKET, profile

from sluice_policies.evaluate import HEADER_KEYS, evaluate, request_for
from sluice_policies.policy_set import PolicySet
from sluice_policies.settings import RoleName
from sluice_store.s3.settings import S3Settings


def certificate(folder: Path) -> Path:
    """Create a self-signed certificate of 127.0.0.1 and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


def authority_and_certificate(folder: Path) -> tuple[Path, Path]:
    """Create an authority and a certificate of 127.0.0.1 that it signed.

    Returns:
        The file of the authority, and the file of the certificate with its key.
    """
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in ("ca", "server")]
    now = dt.datetime.now(dt.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = [
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(names[0])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=name == names[0], path_length=None), critical=True)
        .add_extension(address, critical=False)
        .sign(keys[0], hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        for name, key in zip(names, keys, strict=True)
    ]
    authority, server = folder / "authority.pem", folder / "signed.pem"
    authority.write_bytes(signed[0])
    private = keys[1].private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    server.write_bytes(private + signed[1])
    return authority, server


CREDENTIALS = {f"sluice-{name.value}": f"secret-of-{name.value}" for name in RoleName}
_ROLES = {f"sluice-{name.value}": name for name in RoleName}
_ON_OBJECTS = {
    "GET": ("s3:GetObject", "s3:GetObjectVersion"),
    "HEAD": ("s3:GetObject", "s3:GetObjectVersion"),
    "PUT": ("s3:PutObject", "s3:PutObject"),
    "POST": ("s3:PutObject", "s3:PutObject"),
    "DELETE": ("s3:DeleteObject", "s3:DeleteObjectVersion"),
}
_MULTIPART = frozenset({"uploads", "uploadId", "partNumber"})


def action_of(call: GuardedCall) -> str:
    """Return the action of a request, as the S3 API Reference lists it for each operation."""
    if call.key:
        if call.method == "PUT" and "retention" in call.query:
            return "s3:PutObjectRetention"
        if call.method == "DELETE" and "uploadId" in call.query:
            return "s3:AbortMultipartUpload"
        return _ON_OBJECTS[call.method]["versionId" in call.query]
    if "versioning" in call.query:
        return "s3:PutBucketVersioning" if call.method == "PUT" else "s3:GetBucketVersioning"
    return "s3:ListBucketVersions" if "versions" in call.query else "s3:ListBucket"


def _condition_keys(call: GuardedCall) -> Iterator[tuple[str, str]]:
    yield "aws:SecureTransport", "true" if call.tls else "false"
    for name, value in call.headers.items():
        if name.lower() in HEADER_KEYS:
            yield name, value
    if "prefix" in call.query:
        yield "s3:prefix", call.query["prefix"]
    if _MULTIPART & call.query.keys():
        yield "s3:ObjectCreationOperation", "false"


def guard_of(policies: PolicySet) -> Guard:
    """Return the decision of the policies about the requests of the roles."""
    prefix = policies.settings.bucket.prefix

    def guard(call: GuardedCall) -> bool:
        role = _ROLES[call.access_key]
        if call.key and not call.key.startswith(prefix):
            return False  # no role has a right outside the deployment
        key = call.key.removeprefix(prefix) or None
        headers = dict(_condition_keys(call))
        request = request_for(policies, role.value, action_of(call), key, headers)
        return evaluate(policies, request).allowed

    return guard


@asynccontextmanager
async def enforcing_server(
    policies: PolicySet, folder: Path
) -> AsyncIterator[tuple[MemoryServer, S3Settings]]:
    """Run a server over TLS whose bucket enforces policies; yield it and how to reach it."""
    path = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    async with serve_memory(CREDENTIALS, tls=context) as server:
        server.make_bucket(BUCKET)
        server.guard = guard_of(policies)
        yield (
            server,
            S3Settings(
                bucket=BUCKET,
                prefix=policies.settings.bucket.prefix,
                endpoint=server.endpoint,
                region="us-east-1",
                profile=profile(RoleName.GATEWAY),
                ca_bundle=str(path),
            ),
        )
