"""Certificates for servers on this machine, made with the `openssl` command and signed by an authority of the test."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a server: its certificate, its key, and the certificate of the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


def certificate(folder: Path, name: str = "127.0.0.1") -> Certificate:
    """A certificate for `name`, an address or a host, by an authority that nobody else trusts."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificate(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    _openssl("req", "-x509", *KEY, "-subj", "/CN=authority of a test", "-keyout", folder / "ca.key",
             "-out", made.authority, "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    kind = "IP" if name[0].isdigit() else "DNS"
    _openssl("req", "-x509", *KEY, "-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}",
             "-addext", "basicConstraints=critical,CA:FALSE", "-CA", made.authority, "-CAkey", folder / "ca.key",
             "-keyout", made.key, "-out", made.certificate)  # fmt: skip
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, timeout=30, capture_output=True)
