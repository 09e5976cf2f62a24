"""Calls that need nothing but their parameters, as schema/calls.py describes them."""

import struct
from collections.abc import Callable
from typing import Any

from gpupool.remoting.driver_api.executor.client_state import Client, HandlerGroup
from gpupool.remoting.driver_api.executor.sync_waiter import FREES_PATIENCE_S
from gpupool.remoting.driver_api.schema import table
from gpupool.remoting.driver_api.schema.calls import WAIT_FOR_VALUE
from gpupool.remoting.driver_api.schema.layout import Field, Record

SIGNED = 1 << 63

ENDS_WAIT = "cuEventElapsedTime"
"""Its answer says that both events are over, so what they cover must be in place."""


class Generic(HandlerGroup):
    """Executes ``table.CALLS``."""

    def __init__(self, client: Client, replaced: dict[str, Callable[..., None]]) -> None:
        """Call what ``replaced`` has under a name in place of that function of cuda.bindings."""
        super().__init__(client)
        for op, (name, tokens, asked) in table.CALLS.items():
            words = tokens.split()
            fields = tuple(Field(f"word_{at}", "u64") for at in range(len(words)))
            run = replaced.get(name) or self._call(name, words)
            self.calls[op] = (Record(name, fields, asked), run)

    def _call(self, name: str, tokens: list[str]) -> Callable[..., Any]:
        """Return a method that converts the words of a record and calls cuda.bindings."""
        made = next((token[1] for token in tokens if token[0] == "+"), "")
        ended = next((token[1] for token in tokens if token[0] == "!"), "")

        waits = name.startswith(WAIT_FOR_VALUE)

        def run(*words: int) -> bytes:
            if waits:
                self.waiter.freeing.wait_for_calls(FREES_PATIENCE_S)
            arguments: list[Any] = []
            new = gone = 0
            for token, word in zip(tokens, words, strict=True):
                if token[0] == "+":
                    new = word
                    continue
                if token[0] == "!":
                    gone = word
                arguments.append(self._argument(token.lstrip("!"), word))
            output = self.api.call(name, *arguments)
            if name == ENDS_WAIT:
                self.waiter.push()
            if ended:
                del self.objects[ended][gone]
                for tell in self.client.ended:
                    tell(ended, gone)
                self.client.end_issuing(ended, gone)
            if made:
                self.client.keep(made, new, int(output))
                return b""
            if isinstance(output, float):
                return struct.pack("<f", output)
            return struct.pack("<q", int(output)) if isinstance(output, int) else b""

        return run

    def _argument(self, kind: str, word: int) -> Any:
        if kind == "f":
            return self.client.functions[word].handle
        if kind in self.objects:
            return self.objects[kind][word]
        if kind == "d":
            return self.client.ordinals[self.client.index(word)]
        if kind.startswith("="):
            return self.api.enumerated(kind[1:], word)
        return word - 2 * SIGNED if word >= SIGNED else word
