"""A server's HTTPS, wired together: its exporter's door, its certificate, the checks of tokens."""

import logging
from collections.abc import Callable

from gpupool.monitoring.exporter_link import WebLink
from gpupool.monitoring.http.http_frames import WebSetup
from gpupool.pool.model.state import PoolState
from gpupool.remoting.daemon.join_options import WebOptions
from gpupool.remoting.server.control_server import ControlServer
from gpupool.remoting.transport.authority.web_certificate import WebCertificate, WebCertificates
from gpupool.remoting.transport.peer_transport import PeerTransport
from gpupool.remoting.transport.pki import validity_of


class WebParts:
    """The parts of a server that concern HTTPS; ``link`` is None where it is turned off."""

    ends_ms = 0
    """When the exporter's certificate ends; 0: it has none yet."""

    def __init__(self, options: WebOptions | None, state: Callable[[], PoolState]) -> None:
        self._options = options
        self._state = state
        self.link = WebLink(state, sd_labels=options.sd_labels) if options is not None else None

    async def run(self, server: ControlServer, links: PeerTransport) -> None:
        """Get certificates, sign those of others' exporters, and serve; until cancelled."""
        options, link, context = self._options, self.link, server.controller.context
        certificates = WebCertificates(
            context.me.id,
            state=self._state,
            ca_key=server.authorities.key,
            links=links,
            now_ms=context.now_ms,
            log=logging.getLogger("gpupool.web"),
            site=options.site if options is not None else None,
        )
        if options is None or link is None:
            return  # the others' exporters are signed for all the same
        link.check_token = server.controller.check_token
        link.now_ms = context.now_ms
        link.ca_pem = lambda: b"".join(server.authorities.key.trusted)

        def changed(certificate: WebCertificate) -> None:
            setup = WebSetup(
                certificate.certificate_pem,
                certificate.key_pem,
                open_networks=options.open_networks,
                users=options.users,
                readonly=options.readonly,
            )
            link.set_up(setup)
            self.ends_ms = validity_of(certificate.certificate_pem).ends_ms

        await certificates.run(changed)
