"""The compiler of policy documents: a short, separate process for each document.

A document comes from a user, so nothing of it is parsed in the server's process: a parser that is
led astray costs its own process time and memory, within limits, and the event loop nothing. The
child reads a packed document from its standard input and writes a packed draft, or one mistake.

The wire between them: the child's first byte is ``DRAFT`` or ``MISTAKE``, and the rest is the
draft of ``policy_versions.pack_draft`` or a text in UTF-8.
"""

import resource
import signal
import sys
from collections.abc import Sequence

import trio

from gpupool.pool.errors import GpupoolError, NotNowError, UsageError
from gpupool.pool.transitions.policy_versions import (
    DRAFT_SIZE_MAX,
    Draft,
    pack_draft,
    unpack_draft,
)
from gpupool.remoting.protocol.policy_text import (
    CHECK_HINT,
    REASON_LENGTH_MAX,
    REFUSED,
    compile_text,
)

DRAFT, MISTAKE = b"+", b"-"

CPU_MAX_S = 5
"""Processor time of one child. The largest document of 256 KiB takes 0.4 s."""

MEMORY_MAX = 1 << 29
"""Bytes of address space of one child: a Python interpreter and fifty times the largest draft."""

TIMEOUT_S = 10.0

TIME_IS_UP = (-signal.SIGXCPU, -signal.SIGKILL)
BROKEN = "the policy could not be compiled"

# -P: the present directory chooses none of the child's modules. The environment may, as it does
# the server's: gpupool can lie in the user's own site-packages.
COMMAND = (sys.executable, "-P", "-m", __name__)


class PolicyCompiler:
    """Compiles one policy document at a time, each in a separate process."""

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._one_at_a_time = trio.CapacityLimiter(1)

    async def compile(self, packed: bytes, now_ms: int) -> Draft:
        """Return the draft of a packed document.

        Raises:
            UsageError: when it is no policy, or takes more than the limits above.
            NotNowError: when the child could not run within ``TIMEOUT_S``, or broke.
        """
        command = [*self._command, str(now_ms)]
        try:
            with trio.fail_after(TIMEOUT_S):
                async with self._one_at_a_time:
                    done = await trio.run_process(
                        command, stdin=packed, capture_stdout=True, capture_stderr=True, check=False
                    )
        except (OSError, trio.TooSlowError) as error:
            raise NotNowError(BROKEN, why=f"{error}"[:200] or "its reader took too long") from error
        head, body = done.stdout[:1], done.stdout[1:]
        if done.returncode == 0 and head == DRAFT and len(body) <= DRAFT_SIZE_MAX:
            return await trio.to_thread.run_sync(unpack_draft, body)
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        if done.returncode == 0 and head == MISTAKE:
            why = body.decode(errors="replace")[:REASON_LENGTH_MAX]
        elif done.returncode in TIME_IS_UP or last.startswith("MemoryError"):
            why = "it takes too much time or memory to read"
        else:
            raise NotNowError(BROKEN, why=f"its reader ended with status {done.returncode}: {last}")
        raise UsageError(REFUSED, why=why, hint=CHECK_HINT)


def limit_resources(cpu_s: int = CPU_MAX_S) -> None:
    """Limit the processor time and memory of this process, for good."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main() -> None:
    """Compile the document on standard input; see the module."""
    limit_resources()
    try:
        answer = DRAFT + pack_draft(compile_text(sys.stdin.buffer.read(), int(sys.argv[1])))
    except GpupoolError as error:
        answer = MISTAKE + (error.why or str(error)).encode(errors="replace")
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    _main()
