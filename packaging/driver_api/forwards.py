"""The functions of CUDA that only forward to one of a C file's own, by file.

A row is the C expression that the exported function returns; ``a0`` is its first parameter, and
``*`` are all of them. ``shim/*/NAME.c`` includes its part of ``generated_forwards.h`` at its end.
"""

from cuda_headers import Function
from thread_stubs import declared_as

KERNEL_1 = "GP_FRONT(kernel, kernel)"
"""CUDA_KERNEL_NODE_PARAMS of the first version."""
COPY, OF_COPY = "GP_PART(memcpy.copy)", "GP_PART(memcpy.context)"
FILL, OF_FILL = "GP_FRONT(memset, context)", "GP_PART(memset.context)"
EVENT = "GP_PART(event)"


def added(kind: str, part: str, given: str, context: str = "GP_NO_CONTEXT") -> str:
    """Return the expression that adds a node by a part of its parameters."""
    return f"add_one(a0, a1, a2, a3, GP_NODE_{kind}, {part}, {given}, {context})"


def both(name: str, given: str, context: str = "") -> dict[str, str]:
    """Return the rows that set a node's parameters in a graph and in an executable."""
    in_graph = f"{context}, NULL" if context else "GP_NO_CONTEXT"
    in_exec = f"{context}, &a3" if context else "GP_NO_CONTEXT"
    return {
        name.format(""): f"set_one(NULL, a0, {given.format('a1')}, {in_graph})",
        name.format("Exec"): f"IN(a0, set_one(a0, a1, {given.format('a2')}, {in_exec}))",
    }


FORWARDS: dict[str, dict[str, str]] = {
    "capture": {
        "cuStreamBeginCapture_v2": "begin_mode(*)",
        "cuStreamBeginCapture": "begin_mode(a0, 0)",
        "cuStreamGetCaptureInfo": "capture_info(*, NULL, NULL, NULL, NULL)",
        "cuStreamGetCaptureInfo_v2": "capture_info(a0, a1, a2, a3, a4, NULL, a5)",
        "cuStreamGetCaptureInfo_v3": "capture_info(*)",
        "cuStreamUpdateCaptureDependencies_v2": "update_dependencies(*)",
        "cuStreamUpdateCaptureDependencies": "update_dependencies(a0, a1, NULL, a2, a3)",
    },
    "graph": {
        "cuGraphAddDependencies_v2": "add_dependencies(*)",
        "cuGraphAddDependencies": "add_dependencies(a0, a1, a2, NULL, a3)",
        "cuGraphRemoveDependencies_v2": "remove_dependencies(*)",
        "cuGraphRemoveDependencies": "remove_dependencies(a0, a1, a2, NULL, a3)",
        "cuGraphGetEdges_v2": "get_edges(*)",
        "cuGraphGetEdges": "get_edges(a0, a1, a2, NULL, a3)",
        "cuGraphNodeGetDependencies_v2": "get_dependencies(*)",
        "cuGraphNodeGetDependencies": "get_dependencies(a0, a1, NULL, a2)",
        "cuGraphNodeGetDependentNodes_v2": "get_dependents(*)",
        "cuGraphNodeGetDependentNodes": "get_dependents(a0, a1, NULL, a2)",
    },
    "graph_exec": {
        "cuGraphInstantiateWithFlags": "instantiate(*, NULL, NULL, NULL)",
        "cuGraphExecChildGraphNodeSetParams": "gp_set_child(*)",
        "cuGraphExecUpdate_v2": "update(*)",
    },
    "graph_node": {
        "cuGraphAddNode_v2": "a5 == NULL ? GP_INVALID_VALUE : add(*)",
        "cuGraphAddNode": "a4 == NULL ? GP_INVALID_VALUE : add(a0, a1, a2, NULL, a3, a4)",
        "cuGraphAddKernelNode_v2": added("KERNEL", "GP_PART(kernel)", "a4"),
        "cuGraphAddKernelNode": added("KERNEL", KERNEL_1, "a4"),
        "cuGraphAddMemcpyNode": added("MEMCPY", COPY, "a4", f"{OF_COPY}, &a5"),
        "cuGraphAddMemsetNode": added("MEMSET", FILL, "a4", f"{OF_FILL}, &a5"),
        "cuGraphAddHostNode": added("HOST", "GP_PART(host)", "a4"),
        "cuGraphAddChildGraphNode": added("GRAPH", "GP_PART(graph.graph)", "&a4"),
        "cuGraphAddEmptyNode": added("EMPTY", "GP_FRONT(kernel, function)", "a0"),
        "cuGraphAddEventRecordNode": added("RECORD_EVENT", EVENT, "&a4"),
        "cuGraphAddEventWaitNode": added("WAIT_EVENT", EVENT, "&a4"),
        "cuGraphAddMemFreeNode": added("FREE", "GP_PART(address)", "&a4"),
        "cuGraphAddBatchMemOpNode": added("BATCH", "GP_PART(batch)", "a4"),
    },
    "graph_params": {
        "cuGraphKernelNodeGetParams_v2": "get_part(a0, GP_NODE_KERNEL, a1, GP_PART(kernel))",
        "cuGraphKernelNodeGetParams": f"get_part(a0, GP_NODE_KERNEL, a1, {KERNEL_1})",
        "cuGraphMemcpyNodeGetParams": f"get_part(a0, GP_NODE_MEMCPY, a1, {COPY})",
        "cuGraphMemsetNodeGetParams": f"get_part(a0, GP_NODE_MEMSET, a1, {FILL})",
        "cuGraphHostNodeGetParams": "get_part(a0, GP_NODE_HOST, a1, GP_PART(host))",
        "cuGraphMemAllocNodeGetParams": "get_part(a0, GP_NODE_ALLOCATE, a1, GP_PART(allocate))",
        "cuGraphMemFreeNodeGetParams": "get_part(a0, GP_NODE_FREE, a1, GP_PART(address))",
        "cuGraphBatchMemOpNodeGetParams": "get_part(a0, GP_NODE_BATCH, a1, GP_PART(batch))",
        "cuGraphEventRecordNodeGetEvent": "get_event(a0, GP_NODE_RECORD_EVENT, a1)",
        "cuGraphEventWaitNodeGetEvent": "get_event(a0, GP_NODE_WAIT_EVENT, a1)",
        "cuGraphNodeSetParams": "a1 == NULL ? GP_INVALID_VALUE : set(a0, a1)",
        **both("cuGraph{}KernelNodeSetParams_v2", "GP_NODE_KERNEL, GP_PART(kernel), {}"),
        **both("cuGraph{}KernelNodeSetParams", f"GP_NODE_KERNEL, {KERNEL_1}, {{}}"),
        **both("cuGraph{}MemcpyNodeSetParams", f"GP_NODE_MEMCPY, {COPY}, {{}}", OF_COPY),
        **both("cuGraph{}MemsetNodeSetParams", f"GP_NODE_MEMSET, {FILL}, {{}}", OF_FILL),
        **both("cuGraph{}HostNodeSetParams", "GP_NODE_HOST, GP_PART(host), {}"),
        **both("cuGraph{}EventRecordNodeSetEvent", f"GP_NODE_RECORD_EVENT, {EVENT}, &{{}}"),
        **both("cuGraph{}EventWaitNodeSetEvent", f"GP_NODE_WAIT_EVENT, {EVENT}, &{{}}"),
        **both("cuGraph{}BatchMemOpNodeSetParams", "GP_NODE_BATCH, GP_PART(batch), {}"),
    },
    "pinned": {
        "cuMemHostAlloc": "allocate(*)",
        "cuMemAllocHost_v2": "allocate(*, 0)",
        "cuMemFreeHost": "gp_free_host(*)",
        "cuMemHostUnregister": "gp_unregister_host(*)",
    },
    "batch": {
        "cuMemcpyBatchAsync_v2": "copy_all(a0, a1, a2, a3, a4, a5, a6, NULL, a7)",
        "cuMemcpyBatchAsync": "copy_all(*)",
        "cuMemcpy3DBatchAsync_v2": "copy_boxes(a0, a1, NULL, a2, a3)",
        "cuMemcpy3DBatchAsync": "copy_boxes(*)",
    },
    "boxes": {
        "cuMemcpy2D_v2": "copy_rectangle(a0, NULL, false)",
        "cuMemcpy2DUnaligned_v2": "copy_rectangle(a0, NULL, false)",
        "cuMemcpy2DAsync_v2": "copy_rectangle(*, true)",
        "cuMemcpy3D_v2": "gp_copy_box(a0, NULL, false)",
        "cuMemcpy3DAsync_v2": "gp_copy_box(*, true)",
        "cuMemcpy3DPeer": "gp_copy_box(a0, NULL, false)",
        "cuMemcpy3DPeerAsync": "gp_copy_box(*, true)",
        "cuMemcpyHtoA_v2": "copy_row(in_array(a0, a1), on_host(a2), a3, NULL, false)",
        "cuMemcpyHtoAAsync_v2": "copy_row(in_array(a0, a1), on_host(a2), a3, a4, true)",
        "cuMemcpyAtoH_v2": "copy_row(on_host(a0), in_array(a1, a2), a3, NULL, false)",
        "cuMemcpyAtoHAsync_v2": "copy_row(on_host(a0), in_array(a1, a2), a3, a4, true)",
        "cuMemcpyDtoA_v2": "copy_row(in_array(a0, a1), on_device(a2), a3, NULL, false)",
        "cuMemcpyAtoD_v2": "copy_row(on_device(a0), in_array(a1, a2), a3, NULL, false)",
        "cuMemcpyAtoA_v2": "copy_row(in_array(a0, a1), in_array(a2, a3), a4, NULL, false)",
    },
    "copies": {
        "cuMemcpyHtoD_v2": "write_now(*)",
        "cuMemcpyHtoDAsync_v2": "write_async(*)",
        "cuMemcpyDtoH_v2": "read_now(*)",
        "cuMemcpyDtoHAsync_v2": "read_async(*)",
    },
    "pool": {
        "cuDeviceGetDefaultMemPool": "tell_default(*)",
        "cuDeviceGetMemPool": "tell_current(*)",
        "cuDeviceSetMemPool": "set_current(*)",
        "cuMemAllocAsync": "allocate_async(a0, a1, NULL, a2)",
    },
    "attributes": {
        "cuKernelGetAttribute": "get_attribute(*)",
        "cuFuncGetAttribute": "gp_function_attribute(*)",
        "cuKernelSetAttribute": "set_attribute(*)",
    },
    "occupancy": {
        "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "active_blocks(*)",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": "active_blocks(*, 0)",
        "cuOccupancyMaxActiveClusters": "clusters(*, 0)",
        "cuOccupancyMaxPotentialClusterSize": "clusters(*, 1)",
        "cuOccupancyMaxPotentialBlockSizeWithFlags": "potential_block(*)",
        "cuOccupancyMaxPotentialBlockSize": "potential_block(*, 0)",
    },
    "green": {
        "cuDeviceGetDevResource": "resource_of_device(*)",
        "cuGreenCtxGetDevResource": "resource_of_green(*)",
        "cuGreenCtxRecordEvent": "gp_green_record(*)",
        "cuGreenCtxWaitEvent": "gp_green_wait(*)",
        "cuStreamGetGreenCtx": "green_of(*)",
    },
    "legacy": {
        "cuParamSetv": "set_parameter(*)",
        "cuParamSeti": "set_parameter(a0, a1, &a2, sizeof a2)",
        "cuParamSetf": "set_parameter(a0, a1, &a2, sizeof a2)",
        "cuLaunchGridAsync": "launch_grid(*)",
        "cuLaunchGrid": "launch_grid(*, NULL)",
        "cuLaunch": "launch_grid(a0, 1, 1, NULL)",
    },
    "query": {
        "cuArrayGetMemoryRequirements": "ask(a0, a1, GP_ARRAY, MEMORY, a2)",
        "cuMipmappedArrayGetMemoryRequirements": "ask(a0, a1, GP_MIPMAP, MEMORY, a2)",
        "cuArrayGetSparseProperties": "ask(*, GP_ARRAY, SPARSE, 0)",
        "cuMipmappedArrayGetSparseProperties": "ask(*, GP_MIPMAP, SPARSE, 0)",
        "cuCoredumpGetAttributeGlobal": "get_dump(*, -1)",
        "cuCoredumpSetAttributeGlobal": "set_dump(*, -1)",
    },
    "reference": {
        "cuModuleGetTexRef": "find(*, GP_TEXTURE_REFERENCE)",
        "cuModuleGetSurfRef": "find(*, GP_SURFACE_REFERENCE)",
        "cuTexRefSetArray": "tie(a0, GP_TEXTURE_REFERENCE, TO_ARRAY, a1, GP_ARRAY, a2)",
        "cuTexRefSetMipmappedArray": "tie(a0, GP_TEXTURE_REFERENCE, TO_MIPMAP, a1, GP_MIPMAP, a2)",
        "cuSurfRefSetArray": "tie(a0, GP_SURFACE_REFERENCE, TO_SURFACE, a1, GP_ARRAY, a2)",
        "cuTexRefGetArray": "bound_object(*, GP_TEXTURE_REFERENCE, TO_ARRAY)",
        "cuTexRefGetMipmappedArray": "bound_object(*, GP_TEXTURE_REFERENCE, TO_MIPMAP)",
        "cuSurfRefGetArray": "bound_object(*, GP_SURFACE_REFERENCE, TO_SURFACE)",
        "cuTexRefSetFormat": "set(a0, FORMAT, (uint32_t)a1, (uint32_t)a2)",
        "cuTexRefSetFilterMode": "set(a0, FILTER, (uint32_t)a1, 0)",
        "cuTexRefSetMipmapFilterMode": "set(a0, MIP_FILTER, (uint32_t)a1, 0)",
        "cuTexRefSetMipmapLevelBias": "set(a0, MIP_BIAS, bits(a1), 0)",
        "cuTexRefSetMipmapLevelClamp": "set(a0, MIP_CLAMP, bits(a1), bits(a2))",
        "cuTexRefSetMaxAnisotropy": "set(a0, ANISOTROPY, a1, 0)",
        "cuTexRefSetFlags": "set(a0, FLAGS, a1, 0)",
        "cuTexRefGetFormat": "get_two(*, FORMAT)",
        "cuTexRefGetFilterMode": "get_one(*, FILTER)",
        "cuTexRefGetMipmapFilterMode": "get_one(*, MIP_FILTER)",
        "cuTexRefGetMipmapLevelBias": "get_one(*, MIP_BIAS)",
        "cuTexRefGetMipmapLevelClamp": "get_two(*, MIP_CLAMP)",
        "cuTexRefGetMaxAnisotropy": "get_one(*, ANISOTROPY)",
        "cuTexRefGetFlags": "get_one(*, FLAGS)",
    },
    "texture": {
        "cuTexObjectDestroy": "destroy(a0, false)",
        "cuTexObjectGetResourceDesc": "describe(a1, false, a0, 0, RESOURCE_SIZE)",
        "cuTexObjectGetTextureDesc": "describe(a1, false, a0, RESOURCE_SIZE, TEXTURE_SIZE)",
        "cuTexObjectGetResourceViewDesc": "describe(a1, false, a0, VIEW_AT, VIEW_SIZE)",
        "cuSurfObjectCreate": "create(*, NULL, NULL, true)",
        "cuSurfObjectDestroy": "destroy(a0, true)",
        "cuSurfObjectGetResourceDesc": "describe(a1, true, a0, 0, RESOURCE_SIZE)",
    },
    "value": {
        "cuCtxRecordEvent": "context_event(*, 0)",
        "cuCtxWaitEvent": "context_event(*, EVENT_OF_CONTEXT_WAITS)",
        "cuCtxEnablePeerAccess": "a1 == 0 ? peer_access(a0, 1) : GP_INVALID_VALUE",
        "cuCtxDisablePeerAccess": "peer_access(a0, 0)",
    },
    "context": {
        "cuCtxGetDevice_v2": "tell_device(*)",
        "cuCtxGetDevice": "tell_device(a0, NULL)",
        "cuCtxSynchronize_v2": "synchronize(*)",
        "cuCtxSynchronize": "synchronize(NULL)",
        "cuCtxCreate_v2": "create_context(*)",
        "cuCtxCreate_v3": "a1 != NULL || a2 != 0 ? GP_NOT_SUPPORTED : create_context(a0, a3, a4)",
        "cuCtxCreate_v4": "create_with(*)",
    },
    "device": {
        "cuDeviceGetAttribute": "gp_device_attribute(*)",
        "cuProfilerStart": "gp_ready()",
        "cuProfilerStop": "gp_ready()",
    },
    "stream": {
        "cuStreamSynchronize": "gp_synchronize_stream(*)",
        "cuEventRecordWithFlags": "gp_record_event(*)",
        "cuEventRecord": "gp_record_event(*, 0)",
        "cuEventSynchronize": "gp_await_event(*)",
        "cuStreamGetCtx": "gp_context_of_stream(*)",
    },
}


def forward(function: Function, expression: str) -> str:
    """Return the C source of one exported function that returns an expression."""
    declared = declared_as(function.parameters)
    every = ", ".join(f"a{at}" for at in range(len(declared)))
    return (
        f"GP_EXPORT int {function.symbol}({', '.join(declared) or 'void'}) {{\n"
        f"    return {expression.replace('*', every)};\n}}"
    )


def render_forwards(functions: dict[str, Function]) -> list[str]:
    """Return the lines of the C header, a part for each file."""
    lines: list[str] = []
    for name, rows in FORWARDS.items():
        lines.append(f"#ifdef GP_FORWARDS_{name.upper()}")
        lines += [forward(functions[symbol], text) for symbol, text in rows.items()]
        lines += ["#endif", ""]
    return lines
