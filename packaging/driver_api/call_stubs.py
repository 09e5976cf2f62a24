"""The C source of the shim's marshalled calls, one function for each row of ``CALLS``."""

from cuda_headers import Function

from gpupool.remoting.driver_api.schema.calls import BASE_CALLS, WAIT_FOR_VALUE
from gpupool.remoting.driver_api.schema.table import FIRST_CALL

LATER = FIRST_CALL + BASE_CALLS
"""Numbers from here on are of calls that a worker may not know."""

C_TYPES = {
    "size_t": "size_t",
    "CUdeviceptr": "uint64_t",
    "cuuint64_t": "uint64_t",
    "unsigned long long": "unsigned long long",
    "unsigned int": "unsigned int",
    "cuuint32_t": "uint32_t",
    "unsigned short": "unsigned short",
    "unsigned char": "unsigned char",
    "int": "int",
    "float": "float",
    "CUdevice": "int",
    "CUtexObject": "unsigned long long",
    "CUsurfObject": "unsigned long long",
    "CUmemLocation": "uint64_t",  # two numbers in one register
}
KINDS = {
    "s": "STREAM",
    "e": "EVENT",
    "g": "GRAPH",
    "x": "GRAPH_EXEC",
    "f": "FUNCTION",
}

BETWEEN = {
    "cuMemcpyDtoD_v2": "gp_copy_across(a0, a1, a2, NULL)",
    "cuMemcpyDtoDAsync_v2": "gp_copy_across(a0, a1, a2, a3)",
}
"""The copies that may lead from one server to another, if a lease has several servers."""


SETTLES = (
    "cuMemcpyDtoD_v2",
    *(f"cuMemset{kind}_v2" for kind in ("D8", "D16", "D32", "D2D8", "D2D16", "D2D32")),
)
"""Calls that return before they have written, unless they write to pinned memory of the host.

CUDA says so of memsets ("API synchronization behavior" in the documentation of the driver API). A
copy to such memory is a copy to the host, which a program may read at once, too.
"""


REFUSED = {
    "cuStreamCreate": "a1 > 1",
    "cuStreamCreateWithPriority": "a1 > 1",
    "cuEventCreate": "a1 > 7 || (a1 & 6) == 4",
    "cuFuncSetCacheConfig": "a1 < 0 || a1 > 3",
}
"""Flags that CUDA refuses, in C: a call without a reply has to be refused where it is made."""

KNOWN = {"cuEventElapsedTime_v2": "gp_known_elapsed(a0, a1, a2)"}
"""Calls with a result that the client library may know already."""


def handles_of(tokens: list[str], kinds: str = "segx") -> list[str]:
    """Return the parameters that are handles of these kinds."""
    return [f"a{at}" for at, word in enumerate(tokens) if word.lstrip("!") in [*kinds]]


def leader_of(tokens: list[str]) -> str:
    """Return the parameter that says where a call goes: a stream, else another handle."""
    return next(iter(handles_of(tokens, "s") or handles_of(tokens)), "")


def routing(name: str, tokens: list[str]) -> list[str]:
    """Return the C that sends a call to the server of its handles, and refuses those of others.

    A stream decides, else another handle, else an address; without any the current context does.
    """
    handles = handles_of(tokens)
    streams = handles_of(tokens, "s")
    addresses = [f"a{at}" for at, word in enumerate(tokens) if word == "a"]
    leader = leader_of(tokens)
    lines: list[str] = []
    if streams and addresses:
        lines.append(f"GP_ON_EITHER({leader}, {addresses[0]});")
    elif leader:
        lines.append(f"GP_ON({leader});")
    if name in BETWEEN:
        source, target = addresses
        test = f"if (gp_several && gp_between_servers({source}, {target}))"
        lines.append(f"{test} return {BETWEEN[name]};")
    if not leader and addresses:
        leader = addresses[0]
        lines.append(f"GP_ON_ADDRESS({leader});")
    lines += [f"GP_REACH({one});" for one in handles if one != leader]
    return lines + [f"GP_REACH_ADDRESS({one});" for one in addresses if one != leader]


class Stub:
    """The parts of one function, which its parameters add to one after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.declared: list[str] = []
        self.checks: list[str] = []
        self.values: list[str] = []
        self.outputs: list[str] = []
        self.made = ""
        """The kind of handle that the call creates."""
        self.ended = ""
        """Parameter with the handle that the call destroys."""

    def add(self, at: int, word: str, kind: str) -> None:
        """Add parameter ``at``, of C type ``kind``, that is annotated with ``word``."""
        mark, letter = (word[0], word[1:]) if word[0] in "+!" else ("", word)
        if mark == "+":
            self._add_created(at, letter)
        elif word == ">":
            self._add_output(at, kind)
        elif letter == "s" and not mark:
            self._add_stream(at)
        elif letter in KINDS:
            self._add_handle(at, letter)
            self.ended = f"a{at}" if mark else self.ended
        elif word == "d":
            self._add_device(at, kind)
        else:
            self._add_number(at, word, kind)

    def _add_created(self, at: int, letter: str) -> None:
        self.declared.append(f"void **a{at}")
        self.made = f"GP_{KINDS[letter]}"
        self.checks.append(f"if (a{at} == NULL) return GP_INVALID_VALUE;")
        self.checks.append(f"struct gp_handle *made = gp_make({self.made});")
        self.checks.append("if (made == NULL) return GP_OUT_OF_MEMORY;")
        self.values.append("made->id")
        if letter in "se":
            self.checks.append("made->flags = a1;")
        if self.name == "cuStreamCreateWithPriority":
            self.checks.append("made->priority = a2;")
        self.outputs.append(f"*a{at} = made;")

    def _add_output(self, at: int, kind: str) -> None:
        ctype = C_TYPES.get(kind.rstrip("* ").strip(), "int")
        self.declared.append(f"{ctype} *a{at}")
        self.checks.append(f"if (a{at} == NULL) return GP_INVALID_VALUE;")
        self.outputs.append(f"memcpy(a{at}, reply, sizeof *a{at});")

    def _add_stream(self, at: int) -> None:
        self.declared.append(f"void *a{at}")
        self.checks.append(f"uint64_t v{at};")
        self.checks.append(f"GP_CHECK(gp_stream_id(a{at}, &v{at}));")
        self.values.append(f"v{at}")

    def _add_handle(self, at: int, letter: str) -> None:
        self.declared.append(f"void *a{at}")
        known = f"gp_check(a{at}, GP_{KINDS[letter]})"
        self.checks.append(f"GP_CHECK({f'gp_function_here(a{at})' if letter == 'f' else known});")
        self.values.append(f"((struct gp_handle *)a{at})->id")

    def _add_device(self, at: int, kind: str) -> None:
        self.declared.append("void *a0" if "CUcontext" in kind else f"int a{at}")
        source = f"gp_device_of(a{at})" if "CUcontext" in kind else f"a{at}"
        self.checks.append(f"int v{at} = {source};")
        self.checks.append(f"GP_CHECK(gp_check_device(v{at}));")
        self.checks.append(f"GP_ROUTE(v{at});")
        self.values.append(f"gp_server_device(v{at})")

    def _add_number(self, at: int, word: str, kind: str) -> None:
        self.declared.append(f"{C_TYPES.get(kind, 'int')} a{at}")
        if word == "a":
            self.checks.append(f"GP_CHECK(gp_see(&a{at}));")
        if word == "z":
            self.checks.append(f"if (a{at} != 0) return GP_INVALID_VALUE;")
        else:
            self.values.append(f"(uint64_t)a{at}")

    def exchange(self, number: int, how: str) -> list[str]:
        """Return the C that sends the record, and waits for its reply if ``how`` is ``sync``."""
        count = len(self.values)
        if how != "sync":
            settle = "if (status == GP_SUCCESS) status = gp_settle_host(a0, NULL);"
            return [
                f"int status = gp_post({number}, values, {count});",
                *([settle] if self.name in SETTLES else []),
            ]
        return [
            "uint64_t reply[1] = {0};",
            f"int status = gp_call({number}, values, {count}, reply, sizeof reply);",
            *(["if (status != 0) gp_end(made);"] if self.made else []),
            "if (status != 0) return status;",
        ]


def stub(function: Function, number: int, words: list[str]) -> str:
    """Return the C source of one marshalled call."""
    how, tokens = words[0], words[1:]
    name = function.symbol
    if len(tokens) != len(function.parameters):
        raise ValueError(f"{name} has {len(function.parameters)} parameters, not {len(tokens)}")
    parts = Stub(name)
    for at, (word, kind) in enumerate(zip(tokens, function.parameters, strict=True)):
        parts.add(at, word, kind)
    leader = leader_of(tokens)
    if "d" in tokens:
        enter = "GP_ENTER_DEVICE();"
    else:
        enter = f"GP_ENTER_ON({leader});" if leader else "GP_ENTER();"
    values = f"{{{', '.join(parts.values) or '0'}}}"
    lines = [
        enter,
        *routing(name, tokens),
        *([f"if (!gp_knows({number})) return GP_NOT_SUPPORTED;"] if number >= LATER else []),
        *([f"if ({REFUSED[name]}) return GP_INVALID_VALUE;"] if name in REFUSED else []),
        *parts.checks,
        *([f"if ({KNOWN[name]}) return GP_SUCCESS;"] if name in KNOWN else []),
        *(["gp_free_kept_first();"] if name.startswith(WAIT_FOR_VALUE) else []),
        f"uint64_t values[{max(len(parts.values), 1)}] = {values};",
        *parts.exchange(number, how),
        *([f"gp_end((struct gp_handle *){parts.ended});"] if parts.ended else []),
        *parts.outputs,
        "return status;",
    ]
    declared = ", ".join(parts.declared) or "void"
    return "\n".join(
        [f"GP_EXPORT int {name}({declared}) {{", *(f"    {line}" for line in lines), "}"]
    )
