// Graphs, and what makes them executable.
#include "core.h"

int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags);

GP_EXPORT int cuGraphInstantiate(void **made, void *graph, void *node, char *log, size_t size) {
    if (node != NULL) *(void **)node = NULL;
    if (log != NULL && size > 0) *log = '\0';
    return cuGraphInstantiateWithFlags(made, graph, 0);
}

GP_EXPORT int cuGraphInstantiate_v2(void **made, void *graph, void *node, char *log, size_t size) {
    return cuGraphInstantiate(made, graph, node, log, size);
}

GP_EXPORT int cuGraphInstantiateWithParams(void **made, void *graph, void *parameters) {
    struct {
        uint64_t flags;
        void *upload, *node;
        int result;
    } *found = parameters;
    if (found == NULL) return GP_INVALID_VALUE;
    found->node = NULL;
    int status = cuGraphInstantiateWithFlags(made, graph, found->flags & ~2ULL);
    found->result = status == GP_SUCCESS ? 0 : 1;
    return status;
}

GP_EXPORT int cuGraphGetNodes(void *graph, void **nodes, size_t *count) {
    GP_ENTER();
    GP_CHECK(gp_check(graph, GP_GRAPH));
    if (count == NULL) return GP_INVALID_VALUE;
    if (nodes != NULL) return GP_NOT_SUPPORTED;  // their number is all that is remoted yet
    uint64_t values[1] = {((struct gp_handle *)graph)->id}, reply[1] = {0};
    GP_CHECK(gp_call(GP_GRAPH_NODES, values, 1, reply, sizeof reply));
    *count = reply[0];
    return GP_SUCCESS;
}
