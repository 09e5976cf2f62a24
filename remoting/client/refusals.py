"""The refusals of one round of a negotiation, and the texts and errors that they lead to.

The state machine decides when a request waits and when it fails. The words of both depend only on
the request and on the servers' answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpupool.pool.errors import (
    DeniedError,
    GpupoolError,
    NeverFitsError,
    NoQuorumError,
    NotNowError,
    UnreachableError,
)
from gpupool.pool.model.results import RefusalKind
from gpupool.pool.model.state import Request
from gpupool.pool.scheduling.offers import NoOffer, Offer


@dataclass(slots=True)
class Refusals:
    """Why one round has led to no lease so far."""

    of_asks: list[NoOffer] = field(default_factory=list[NoOffer])
    """From servers that were asked and made no offer."""

    offers: list[Offer] = field(default_factory=list[Offer])
    """From servers that have room. Without a claim, they are together too few for the request."""

    left_out: list[str] = field(default_factory=list[str])
    """Names of servers that took no part in an earlier lease. Their offers do not count."""

    failures: list[GpupoolError] = field(default_factory=list[GpupoolError])
    """Errors in the place of such an answer."""

    of_claim: str = ""
    """Why the latest claim was not granted; empty if none was refused."""

    claim_kind: str = ""

    def kinds(self) -> set[str]:
        """Return the kinds of the refusals of asks."""
        return {refusal.kind for refusal in self.of_asks}

    def lasting_error(self, request: Request) -> GpupoolError | None:
        """Return the error of a request that no waiting helps, or None."""
        kinds = self.kinds()
        if kinds == {RefusalKind.NEVER}:
            return NeverFitsError(
                f"no server could ever give {wanted(request)}",
                why=self.of_asks[0].why,
                hint='"gpupool gpus" lists the GPUs of the pool: ask for those',
            )
        if RefusalKind.DENIED in kinds:
            why = next(r.why for r in self.of_asks if r.kind == RefusalKind.DENIED)
            return DeniedError("the pool's rules forbid this request", why=why)
        return None

    def final_error(self, request: Request, wait_s: float | None) -> GpupoolError:
        """Return the error of a request after its waiting time ``wait_s``."""
        kinds = self.kinds()
        if self.claim_kind == RefusalKind.NO_QUORUM or (
            RefusalKind.NO_QUORUM in kinds and RefusalKind.BUSY not in kinds
        ):
            texts = [r.why for r in self.of_asks if r.kind == RefusalKind.NO_QUORUM]
            why = self.of_claim or texts[0]
            hint = '"gpupool status" lists the missing servers'
            return NoQuorumError("the pool cannot grant anything now", why=why, hint=hint)
        short = self._why_offers_fail(request)
        if not self.of_asks and not self.of_claim and not short:
            why = str(self.failures[0]) if self.failures else "no server answered"
            return UnreachableError("the pool does not answer", why=why)
        outcome, hint = "cannot be had now", "wait with --wait, or ask for less"
        if wait_s:
            from gpupool.pool.policy.admission import duration_text

            waited = duration_text(1000 * wait_s) if wait_s >= 1 else "a second"
            outcome, hint = f"could not be had within {waited}", "wait longer, or ask for less"
        texts = [
            f"{r.name}: {r.why}" for r in self._of_suitable_servers() if r.kind != RefusalKind.NEVER
        ]
        why = self.of_claim or self._silent(request) or (texts[0] if texts else short)
        return NotNowError(f"{wanted(request)} {outcome}", why=why, hint=hint)

    def waiting_text(self, request: Request, *, connected: bool) -> str:
        """Return why the request waits; ``connected`` says whether any server is connected."""
        if not connected:
            return "waiting for a server of the pool to answer"
        if silent := self._silent(request):
            return f"waiting for {wanted(request)}: {silent}"
        busy = [r for r in self._of_suitable_servers() if r.kind == RefusalKind.BUSY]
        if not busy:
            lost = [r for r in self.of_asks if r.kind == RefusalKind.NO_QUORUM]
            if lost:
                return f"waiting for the pool to have a majority again ({lost[0].name} has none)"
            why = self.of_claim or self._why_offers_fail(request)
            return f"waiting for {wanted(request)}{': ' if why else ''}{why}"
        ahead = max(refusal.ahead for refusal in busy)
        best = max(busy, key=lambda r: (r.ahead, r.name))
        text = f"{best.name}: {best.why}"
        if len(busy) > 1:
            alike = all(each.why == best.why for each in busy)
            rest = f"{text}; {len(busy) - 1} more busy"
            text = f"{len(busy)} servers: {best.why}" if alike else rest
        return f"waiting for {wanted(request)}, {ahead} ahead ({text})"

    def _why_offers_fail(self, request: Request) -> str:
        """Return why the offers that were made lead to no lease; empty if there were none."""
        if self.left_out:
            names = ", ".join(sorted(self.left_out))
            return f"{names} did not take part in an earlier lease, and will be tried again later"
        count = len({gpu.physical for offer in self.offers for gpu in offer.gpus})
        names = ", ".join(sorted(offer.name for offer in self.offers))
        return f"there is room on only {count} of them ({names})" if names else ""

    def _silent(self, request: Request) -> str:
        """Return that the servers asked for do not answer, where those that do are others."""
        if any(not refusal.never_here for refusal in self.of_asks):
            return ""
        answered = {name for each in self.of_asks for name in (each.server, each.name)}
        silent = [name for name in request.servers if name not in answered]
        return silence_text(silent) if silent else ""

    def _of_suitable_servers(self) -> list[NoOffer]:
        """Return the refusals of servers that could serve the request at another time, if any."""
        return [r for r in self.of_asks if not r.never_here] or self.of_asks


def silence_text(names: Sequence[str]) -> str:
    """Return that these servers do not answer."""
    return f"{', '.join(names)} {'does' if len(names) == 1 else 'do'} not answer"


def wanted(request: Request) -> str:
    """Return the request in words, such as ``2 GPUs`` or ``50 % of 1 GPU``."""
    gpus = "1 GPU" if request.count == 1 else f"{request.count} GPUs"
    if request.memory:
        return f"{request.memory / 2**30:.3g} GiB on {gpus}"
    return gpus if request.fraction >= 1.0 else f"{request.fraction * 100:.3g} % of {gpus}"
