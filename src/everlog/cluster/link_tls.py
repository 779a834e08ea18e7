"""Mutual TLS between brokers: who has a certificate of the cluster's own authority is one of them."""

import ssl
from dataclasses import dataclass

from everlog.base import UsageError


@dataclass(frozen=True, slots=True)
class LinkTls:
    """Both sides' contexts. Names in certificates do not count, only the authority: it must sign nothing else."""

    listening: ssl.SSLContext
    dialling: ssl.SSLContext


def read_link_tls(cert_file: str, key_file: str, ca_file: str) -> LinkTls:
    """Return the contexts of a broker's links, from its files."""
    made = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(cert_file, key_file, password=_no_password)
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"the certificates of links can't be used: {error}", hint=f"look at {cert_file}, {key_file}, {ca_file}"
            ) from error
        made.append(context)
    return LinkTls(*made)


def _no_password() -> str:
    raise UsageError("the key of links is encrypted", hint="decrypt it: openssl pkey -in KEY -out key.pem")
