// A graph as a file of the DOT language, on this machine.
#include "graph.h"

#include <stdio.h>

static const char *type_of(int type) {
    static const char *const names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY",
                                        "EVENT_WAIT", "EVENT_RECORD", "SEMAPHORE_SIGNAL",
                                        "SEMAPHORE_WAIT", "MEM_ALLOC", "MEM_FREE",
                                        "BATCH_MEM_OP", "CONDITIONAL"};
    return type >= 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : "OTHER";
}

#define VERBOSE 1

static void print_node(FILE *file, const struct gp_handle *handle, unsigned flags) {
    const struct gp_node *node = GP_NODE_OF(handle);
    const struct gp_node_params *params = &node->params;
    fprintf(file, "%s", type_of(params->type));
    switch (params->type) {
        case GP_NODE_KERNEL: {
            const struct gp_kernel_node *kernel = &params->kernel;
            const char *name = gp_function_name(kernel->function);
            fprintf(file, "\\n%s\\n<<<%u,%u,%u | %u,%u,%u | %u>>>", name == NULL ? "?" : name,
                    kernel->grid[0], kernel->grid[1], kernel->grid[2], kernel->block[0],
                    kernel->block[1], kernel->block[2], kernel->shared);
            break;
        }
        case GP_NODE_MEMCPY:
            fprintf(file, "\\n%zu x %zu x %zu", params->memcpy.copy.width,
                    params->memcpy.copy.height, params->memcpy.copy.depth);
            break;
        case GP_NODE_MEMSET:
            fprintf(file, "\\n0x%llx = %u, %zu x %zu of %u",
                    (unsigned long long)params->memset.target, params->memset.value,
                    params->memset.width, params->memset.height, params->memset.element);
            break;
        case GP_NODE_ALLOCATE:
            fprintf(file, "\\n0x%llx, %zu", (unsigned long long)params->allocate.address,
                    params->allocate.size);
            break;
        case GP_NODE_FREE:
            fprintf(file, "\\n0x%llx", (unsigned long long)params->address);
            break;
        default: break;
    }
    if (flags & VERBOSE) {
        fprintf(file, "\\nid %llu, %u edges in, %u bytes of parameters",
                (unsigned long long)handle->id, node->edge_count, node->size);
    }
}

static int print_graph(FILE *file, struct gp_handle *handle, unsigned flags, int depth) {
    GP_CHECK(gp_know(handle));
    const struct gp_graph *graph = GP_GRAPH_OF(handle);
    unsigned long long id = handle->id;
    fprintf(file, "subgraph cluster_%llu {\nlabel=\"graph_%llu\" graph[style=\"dashed\"];\n", id, id);
    for (unsigned at = 0; at < graph->count; at++) {
        fprintf(file, "\"graph_%llu_node_%u\"[shape=\"record\" label=\"{%u\\n", id, at, at);
        print_node(file, graph->nodes[at], flags);
        fprintf(file, "}\"];\n");
    }
    for (unsigned to = 0; to < graph->count; to++) {
        const struct gp_node *node = GP_NODE_OF(graph->nodes[to]);
        for (unsigned edge = 0; edge < node->edge_count; edge++) {
            unsigned from = 0;
            while (from < graph->count && graph->nodes[from] != node->edges[edge].node) from++;
            fprintf(file, "\"graph_%llu_node_%u\" -> \"graph_%llu_node_%u\";\n", id, from, id, to);
        }
    }
    fprintf(file, "}\n");
    for (unsigned at = 0; at < graph->count && depth < GP_CHILDREN_MAX; at++) {
        const struct gp_node *node = GP_NODE_OF(graph->nodes[at]);
        for (unsigned child = 0; child < node->child_count; child++) {
            GP_CHECK(print_graph(file, node->children[child], flags, depth + 1));
        }
    }
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphDebugDotPrint(void *graph, const char *path, unsigned flags) {
    GP_ENTER();
    GP_CHECK(gp_check(graph, GP_GRAPH));
    if (path == NULL) return GP_INVALID_VALUE;
    FILE *file = fopen(path, "w");
    if (file == NULL) return GP_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    int status = print_graph(file, graph, flags, 0);
    fprintf(file, "}\n");
    return fclose(file) == 0 ? status : GP_OPERATING_SYSTEM;
}
