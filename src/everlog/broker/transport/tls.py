"""TLS contexts for listeners: read from files, with errors that name the file, and reloaded without a restart."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from everlog.base import UsageError
from everlog.broker.transport.revocation_list import revoked_serials

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files that a TLS listener needs; with `client_ca_file` clients may, or must, show a certificate."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    require_client_cert: bool = False
    protocols: tuple[str, ...] = ()  # offered by ALPN
    crl_file: str | None = None  # revoked client certificates
    min_version: str = "1.2"


class TrustingContext(ssl.SSLContext):
    """A server's context that knows which authorities it lets clients in by."""

    authority_file = b""  # the content of the file that names them
    authorities: Mapping[object, frozenset[bytes]] = {}  # their certificates, by name
    revoked: frozenset[int] = frozenset()  # serial numbers of client certificates


class LiveTls:
    """The TLS context of a listener; each handshake takes the newest one."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = make_context(files)

    def read(self) -> TrustingContext:
        """Return a context from the files as they are now, not yet in force; UsageError if they are bad."""
        return make_context(self._files)


def make_context(files: TlsFiles) -> TrustingContext:
    """Return a server's context: TLS 1.2 or later, as the files say, no compression, no renegotiation."""
    context = TrustingContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[files.min_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if files.protocols:
        context.set_alpn_protocols(list(files.protocols))
    for path in (files.cert_file, files.key_file, files.client_ca_file, files.crl_file):
        if path is not None:
            _check_readable(path)

    def refuse_password() -> str:  # instead of the prompt that OpenSSL would show
        raise UsageError(
            f"{files.key_file} is encrypted, and nobody is here to type its password",
            hint=f"decrypt it: openssl pkey -in {files.key_file} -out key.pem",
        )

    try:
        context.load_cert_chain(files.cert_file, files.key_file, password=refuse_password)
    except ssl.SSLError as error:
        raise _bad_pair(files, error) from error
    if files.client_ca_file is not None:
        _ask_for_certificates(context, files.client_ca_file, files.require_client_cert)
        if files.crl_file is not None:
            _refuse_revoked(context, files.crl_file)
    elif files.require_client_cert:
        raise UsageError(
            "client certificates are required, but no CA is given to check them", hint="set client_ca_file"
        )
    return context


def _ask_for_certificates(context: TrustingContext, ca_file: str, required: bool) -> None:
    with open(ca_file, "rb") as file:
        context.authority_file = file.read()
    try:
        context.load_verify_locations(cafile=ca_file)
    except ssl.SSLError as error:
        raise UsageError(
            f"{ca_file} has no CA certificate ({_words(error)})", hint="give a PEM file of CA certificates"
        ) from error
    known: dict[object, set[bytes]] = {}
    for names, certificate in zip(context.get_ca_certs(), context.get_ca_certs(binary_form=True), strict=True):
        known.setdefault(names["subject"], set()).add(certificate)
    context.authorities = {subject: frozenset(found) for subject, found in known.items()}
    context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    # A resumed session is not verified again, so one from before a reload would outlive its authority.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _refuse_revoked(context: TrustingContext, crl_file: str) -> None:
    with open(crl_file, "rb") as file:
        content = file.read()
    try:
        context.revoked = revoked_serials(content)
        if b"-----BEGIN X509 CRL-----" not in content:
            raise ValueError("it has none")
        context.load_verify_locations(cafile=crl_file)
    except (ssl.SSLError, ValueError) as error:
        words = _words(error) if isinstance(error, ssl.SSLError) else str(error)
        raise UsageError(
            f"{crl_file} has no revocation list ({words})",
            hint="give a PEM file: openssl crl -noout -text -in FILE shows one",
        ) from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = (
            "check the path" if isinstance(error, FileNotFoundError) else f"let the broker's user read it: ls -l {path}"
        )
        raise UsageError(f"{path} can't be read: {reason}", hint=hint) from error


def _bad_pair(files: TlsFiles, error: ssl.SSLError) -> UsageError:
    if error.reason == "KEY_VALUES_MISMATCH":
        return UsageError(
            f"{files.key_file} is not the key of {files.cert_file}",
            hint="the first certificate must be the server's own",
        )
    return UsageError(
        f"{files.cert_file} and {files.key_file} are not a certificate chain and its key ({_words(error)})",
        hint="both must be PEM files: openssl x509 -noout -subject -in CERT, openssl pkey -noout -check -in KEY",
    )


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
