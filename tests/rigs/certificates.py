"""A certificate authority for one test, with what an engine and its clients need of it."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Signed = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make_certificates(folder: Path) -> Path:
    """`ca.pem`, `cert.pem` and `key.pem`, good for 127.0.0.1 on both ends of a connection, in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = _signed("authority", None)
    certificate, key = _signed("127.0.0.1", authority)
    (folder / "ca.pem").write_bytes(authority[0].public_bytes(serialization.Encoding.PEM))
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def _signed(name: str, authority: Signed | None) -> Signed:
    """A certificate of this name and its key; without an authority, one."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority[0].subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if authority:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        address = x509.IPAddress(ipaddress.ip_address(name))
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(authority[1] if authority else key, hashes.SHA256()), key
