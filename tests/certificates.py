"""Certificates for tests, made with the `openssl` command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: str
    key: str


class Authority:
    """A certificate authority in a directory of its own."""

    def __init__(self, directory: Path, name: str = "Test CA") -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.pair = Pair(str(directory / "ca.pem"), str(directory / "ca.key"))
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self.pair.key, "-out", self.pair.cert),
            *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    @property
    def cert(self) -> str:
        """What the other side trusts."""
        return self.pair.cert

    def issue(self, name: str, subject: str | None = None) -> Pair:
        """A certificate for `name`, with the names of this machine in it."""
        base = self._directory / name
        pair = Pair(f"{base}.pem", f"{base}.key")
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(
            "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n"
            "keyUsage=critical,digitalSignature\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", subject or f"/CN={name}", "-keyout", pair.key, "-out", f"{base}.csr"),
        )
        _openssl(
            *("x509", "-req", "-in", f"{base}.csr", "-CA", self.pair.cert, "-CAkey", self.pair.key),
            *("-CAcreateserial", "-days", "2", "-extfile", str(extensions), "-out", pair.cert),
        )
        return pair

    def revoke(self, *pairs: Pair) -> str:
        """A revocation list with the certificates of these."""
        base = self._directory
        (base / "index.txt").write_text("")
        (base / "crlnumber").write_text("01\n")
        (base / "ca.cnf").write_text(
            f"[ca]\ndefault_ca=it\n[it]\ndatabase={base}/index.txt\ncrlnumber={base}/crlnumber\n"
            f"certificate={self.pair.cert}\nprivate_key={self.pair.key}\ndefault_md=sha256\ndefault_crl_days=2\n"
        )
        config = ("ca", "-config", str(base / "ca.cnf"))
        for pair in pairs:
            _openssl(*config, "-revoke", pair.cert)
        _openssl(*config, "-gencrl", "-out", str(base / "crl.pem"))
        return str(base / "crl.pem")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
