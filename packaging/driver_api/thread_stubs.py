"""The C source of per-thread variants: functions with the thread's own default stream.

A program that is compiled for such streams calls ``_ptds`` and ``_ptsz`` functions. Each one calls
the plain function of the same name, with the stream of the thread.
"""

from call_stubs import C_TYPES, SETTLES
from cuda_headers import Function

from gpupool.remoting.driver_api.schema.calls import CALLS

HANDLE_TYPES = {
    *("CUstream", "CUevent", "CUfunction", "CUkernel", "CUmodule", "CUlibrary", "CUcontext"),
    *("CUgraph", "CUgraphExec", "CUgraphNode", "CUmemoryPool", "CUarray", "CUmipmappedArray"),
    *("CUhostFn", "CUstreamCallback", "CUlogsCallback", "CUlogsCallbackHandle", "CUgreenCtx"),
    *("CUoccupancyB2DSize", "CUtexref", "CUsurfref"),
}

NOT_BY_STREAM = {"cuLaunchKernelEx", "cuGraphInstantiateWithParams"}
"""Their stream is a field of a structure, which the shim's own code reads."""


def declared_as(types: tuple[str, ...]) -> list[str]:
    """Return the parameters ``a0`` and so on, of the C types of the shim for those of CUDA."""
    declared: list[str] = []
    for at, kind in enumerate(types):
        ctype = "void *" if "*" in kind or kind not in C_TYPES else C_TYPES[kind] + " "
        if kind.startswith("CU") and not {kind} & {*C_TYPES, *HANDLE_TYPES} and "*" not in kind:
            ctype = "int "  # an enumeration
        declared.append(f"{ctype}a{at}")
    return declared


def thread_stub(function: Function, plain: Function) -> str:
    """Return the per-thread default stream variant of an implemented function."""
    types = plain.parameters
    declared = declared_as(types)
    passed = [
        f"gp_thread_stream(a{at})" if kind == "CUstream" else f"a{at}"
        for at, kind in enumerate(types)
    ]
    if function.variant == "_ptds":
        return without_stream(function, plain, declared, passed)
    prototype = ", ".join(d.rsplit("a", 1)[0].strip() for d in declared) or "void"
    return (
        f"int {plain.symbol}({prototype});\n"
        f"GP_EXPORT int {function.symbol}({', '.join(declared) or 'void'}) {{\n"
        f"    return {plain.symbol}({', '.join(passed)});\n}}"
    )


def without_stream(
    function: Function, plain: Function, declared: list[str], passed: list[str]
) -> str:
    """Return a per-thread variant of a function without a stream.

    A generated call becomes its own form with a stream; the shim's own code asks which one it is.
    """
    name = plain.symbol
    types = [one.rsplit("a", 1)[0].strip() for one in declared]
    before, after, settle = "    gp_per_thread(1);\n", "    gp_per_thread(0);\n", ""
    if name in CALLS:
        if name in SETTLES:
            settle = "    if (status == GP_SUCCESS) status = gp_settle_host(a0, (void *)2);\n"
        name = name.replace("_v2", "Async" if name.startswith("cuMemset") else "Async_v2")
        types, passed, before, after = [*types, "void *"], [*passed, "(void *)2"], "", ""
    return (
        f"int {name}({', '.join(types)});\n"
        f"GP_EXPORT int {function.symbol}({', '.join(declared)}) {{\n{before}"
        f"    int status = {name}({', '.join(passed)});\n{after}{settle}    return status;\n}}"
    )


def thread_ex(symbol: str, plain: str) -> str:
    """Return a per-thread variant with its stream in a structure."""
    count = {"cuLaunchKernelEx": 4, "cuGraphInstantiateWithParams": 3}[plain]
    types = ", ".join("void *" for _ in range(count))
    named = ", ".join(f"void *a{at}" for at in range(count))
    passed = ", ".join(f"a{at}" for at in range(count))
    return (
        f"int {plain}({types});\nGP_EXPORT int {symbol}({named}) {{\n"
        f"    gp_per_thread(1);\n    int status = {plain}({passed});\n    gp_per_thread(0);\n"
        f"    return status;\n}}"
    )
