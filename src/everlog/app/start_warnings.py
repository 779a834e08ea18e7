"""What an operator should know of the settings before something goes wrong: warnings, one line each, at start."""

from everlog.app.settings import Settings, is_loopback


def warnings_of(settings: Settings, kernels: str = "compiled") -> list[str]:
    """Return a line for each setting that is allowed and rarely meant, and for kernels that are not compiled."""
    listener, http, found = settings.listener, settings.http, []
    if kernels != "compiled":
        found.append(
            f"kernels are {kernels}: all works, many times slower; install a C compiler, then everlog again "
            "(EVERLOG_REQUIRE_KERNELS=1 makes a failed compile an error)"
        )
    if http.port is not None and not is_loopback(http.host):
        named = ", client ids too" if http.client_ids else ""
        found.append(
            f"http.host={http.host}: everybody who can reach the HTTP port reads the broker's numbers{named}, "
            "without a password and unencrypted; guard it with a firewall or a proxy"
        )
    cluster = settings.cluster
    if cluster.url is not None and cluster.ca_file is None and not is_loopback(cluster.link.rpartition(":")[0]):
        found.append(
            f"cluster.link={cluster.link}: whoever can reach it can speak as a broker, without a password and "
            "unencrypted; set cluster.cert_file, key_file and ca_file, or guard it with a firewall"
        )
    takes_passwords = settings.security.password_file is not None
    for name, port in (("port", listener.port), ("websocket_port", listener.websocket_port)):
        if takes_passwords and port is not None and not settings.on_loopback:
            found.append(
                f"listener.{name}={port}: passwords cross the network unencrypted; "
                f"set listener.tls_port, and listener.{name} = none once clients use it"
            )
    return found
