"""The clients that a TLS listener knows by their certificates, and whether it still trusts who has issued these.

A connection keeps the TLS context of its handshake. After a reload a client stays if every authority of its issuer's
name that counted then counts now. Of a certificate whose issuer is not in the file itself, such as an intermediate that
the client has sent along, it is not known which authority it was accepted by: it stays only if the file is the same. A
serial number that was revoked ends the connections of all certificates that have it, whoever issued them.
Whoever is closed and still trusted is let in by its next handshake.
"""

import asyncio

from everlog.broker.auth import certificate_user
from everlog.broker.transport.tls import LiveTls, TrustingContext


class ClientCertificates:
    """The certificates of a listener's clients."""

    def __init__(self, tls: LiveTls) -> None:
        self._tls = tls

    def user(self, transport: asyncio.BaseTransport) -> str | None:
        """Return the user that a client's certificate names; it was verified in the handshake."""
        return certificate_user(transport.get_extra_info("peercert"))

    def still_trusts(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether a client has shown no certificate, or one of an authority that counts now."""
        certificate, then = transport.get_extra_info("peercert"), transport.get_extra_info("sslcontext")
        now = self._tls.context
        if not certificate or then is now or not isinstance(then, TrustingContext):
            return True
        if int(certificate["serialNumber"], 16) in now.revoked:
            return False
        issuers = then.authorities.get(certificate["issuer"], frozenset())
        if not issuers:
            return then.authority_file == now.authority_file
        return issuers <= now.authorities.get(certificate["issuer"], frozenset())
