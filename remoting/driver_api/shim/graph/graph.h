// The types that the files of graph/ share: graphs, nodes, and host memory that nodes copy.
#ifndef GP_GRAPH_H
#define GP_GRAPH_H

#include "copies.h"

#define GP_GRAPH_NODES_MAX 65536
#define GP_EDGES_AT_ONCE 4096  // in one record
#define GP_CHILDREN_MAX 64     // graphs within one node
#define GP_WITHIN_MAX 512      // graphs, each within the one before
#define GP_ROWS_MAX 65536      // that one copy of a graph has on the host's side
#define GP_EARLY_MAX 4096      // copies to the host with a host node behind them, in one executable

// CUgraphNodeType of cuda.h.
enum {
    GP_NODE_KERNEL = 0,
    GP_NODE_MEMCPY,
    GP_NODE_MEMSET,
    GP_NODE_HOST,
    GP_NODE_GRAPH,
    GP_NODE_EMPTY,
    GP_NODE_WAIT_EVENT,
    GP_NODE_RECORD_EVENT,
    GP_NODE_ALLOCATE = 10,
    GP_NODE_FREE,
    GP_NODE_BATCH,
    GP_NODE_CONDITIONAL,
};

// CUgraphChildGraphNodeOwnership.
enum { GP_CHILD_CLONE = 0, GP_CHILD_MOVE };

struct gp_location {
    int type, id;
};

struct gp_access {
    struct gp_location location;
    int flags;
};

// CUDA_KERNEL_NODE_PARAMS_v2; the first version ends before kernel.
struct gp_kernel_node {
    void *function;
    uint32_t grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
};

// CUDA_MEMSET_NODE_PARAMS_v2; the first version ends before context.
struct gp_memset_node {
    uint64_t target;
    size_t pitch;
    uint32_t value, element;
    size_t width, height;
    void *context;
};

struct gp_host_node {
    void (*function)(void *);
    void *data;
};

struct gp_allocate_node {
    int type, handles;
    struct gp_location location;
    void *security;
    size_t most;
    unsigned char reserved[56];
    const struct gp_access *access;
    size_t access_count, size;
    uint64_t address;
};

struct gp_batch_node {
    void *context;
    unsigned count;
    const void *operations;  // 48 bytes each
    unsigned flags;
};

struct gp_conditional_node {
    uint64_t handle;
    int type;
    unsigned size;
    void **graphs;
    void *context;
};

// CUgraphNodeParams.
struct gp_node_params {
    int type, reserved[3];
    union {
        long long room[29];
        struct gp_kernel_node kernel;
        struct {
            int flags, reserved;
            void *context;
            struct gp_copy_3d copy;
        } memcpy;
        struct gp_memset_node memset;
        struct gp_host_node host;
        struct {
            void *graph;
            int ownership;
        } graph;
        void *event;
        struct gp_allocate_node allocate;
        uint64_t address;
        struct gp_batch_node batch;
        struct gp_conditional_node conditional;
    };
    long long last;
};

struct gp_edge_data {
    unsigned char from_port, to_port, type, reserved[5];
};

struct gp_edge {
    struct gp_handle *node;  // on which it depends
    struct gp_edge_data data;
};

// Memory of the worker that stands for memory of the host in nodes that copy it.
struct gp_slot {
    uint64_t id, start, size;
    int references;  // of entries in graphs and executables
    int device;      // one of the server that has it
};

// The host's side of a copy in a graph: sent before each launch, or brought back behind it.
struct gp_staged {
    struct gp_slot *slot;
    struct gp_handle *node;  // NULL when a capture made it, and nobody has asked for the node
    uint64_t serial;         // copies of an entry keep it
    uint64_t address;
    size_t pitch, slice, width, height, depth;
    bool out, disabled;
    unsigned early;  // one more than its number in the executable, where a host node comes behind it
};

struct gp_staged_list {
    struct gp_staged *items;
    unsigned count, room;
};

// A host node of an executable that comes behind a copy to the host, with no other between the two.
struct gp_early {
    uint64_t node;         // of the graph
    unsigned host, entry;  // their numbers among the graph's host nodes, and its copies of the host's memory
};

struct gp_early_list {
    struct gp_early *items;
    unsigned count, room;
};

struct gp_allocation {
    uint64_t address, size;
    int device;
    bool freed;  // by a node of the same graph
};

struct gp_allocation_list {
    struct gp_allocation *items;
    unsigned count, room;
};

// A host function that a node calls, by its number.
struct gp_call {
    uint64_t id;
    struct gp_handle *node;  // NULL when a capture made it
};

struct gp_call_list {
    struct gp_call *items;
    unsigned count, room;
};

// Former parameters of a node that the program had asked for.
struct gp_told {
    struct gp_told *next;
    unsigned char *bytes;
    void **pointers;
};

struct gp_node {
    struct gp_handle *graph;
    struct gp_node_params params;  // as the program gave them
    unsigned char *bytes;          // a kernel's parameters, a batch's operations
    uint64_t call;                 // a host function's number
    uint32_t size;
    void **pointers;  // one for each of the kernel's parameters, into bytes
    bool told;        // the program has got these addresses, and may use them until the node ends
    struct gp_told *former;
    struct gp_edge *edges;
    unsigned edge_count, edge_room;
    struct gp_handle **children;  // graphs within this node
    unsigned child_count;
    uint64_t seen;  // by graph_order.c
};

struct gp_graph {
    struct gp_handle **nodes;
    unsigned count, room;
    bool partial;      // the worker has nodes that are not here
    bool conditional;  // a body of a conditional node
    bool memory;       // has nodes that allocate or free
    bool moved;        // the program gave it to the node that it is within
    struct gp_handle *within;  // the node that this graph belongs to
    struct gp_staged_list staged;
    struct gp_call_list calls;
    struct gp_allocation_list allocations;
    struct gp_object *objects;
};

struct gp_exec {
    uint64_t flags;
    struct gp_handle **disabled;
    unsigned disabled_count;
    struct gp_staged_list staged;
    struct gp_early_list early;
    struct gp_call_list calls;
    struct gp_allocation_list allocations;  // that no node of the graph frees
    struct gp_object *objects;
};

#define GP_GRAPH_OF(handle) ((struct gp_graph *)((struct gp_handle *)(handle))->detail)
#define GP_NODE_OF(handle) ((struct gp_node *)((struct gp_handle *)(handle))->detail)
#define GP_EXEC_OF(handle) ((struct gp_exec *)((struct gp_handle *)(handle))->detail)

// graph_lists.c
extern pthread_mutex_t gp_graph_lock;
// The items in room for one more; NULL without memory, and they stay as they are.
void *gp_grown(void *items, unsigned *room, unsigned count, size_t size);
int gp_keep_allocation(struct gp_allocation_list *list, struct gp_allocation one);

// graph_data.c
struct gp_handle *gp_new_graph(struct gp_handle *within);
struct gp_handle *gp_new_node(struct gp_handle *graph, uint64_t id);
void gp_drop_node(struct gp_handle *node);
void gp_drop_graph(struct gp_handle *graph);
int gp_add_edge(struct gp_handle *node, struct gp_handle *on, const struct gp_edge_data *data);

// graph.c
int gp_send_edges(struct gp_handle *graph, unsigned removes, void **from, void **to,
                  const struct gp_edge_data *data, size_t count);
int gp_gather_staged(struct gp_staged_list *to, struct gp_handle *graph, struct gp_handle *node);
struct gp_handle *gp_clone_within(struct gp_handle *graph, struct gp_handle *node);

// graph_read.c
int gp_know(struct gp_handle *graph);
int gp_know_all(struct gp_handle *graph);  // and the graphs within it
int gp_read_front(struct gp_handle *graph, uint64_t stream, int *status, struct gp_handle ***nodes,
                  struct gp_edge_data **data, size_t *count);

// graph_pack.c: parameters as they travel, in place of those that the program gave
struct gp_packed {
    struct gp_node_params params;
    unsigned char *bytes;  // to be freed
    uint32_t size;
    struct gp_staged staged[2];  // with a reference to each slot
    unsigned staged_count;
    uint64_t call;  // a host function's number, with a reference
};
int gp_pack_context(void **context);
int gp_pack(struct gp_handle *graph, const struct gp_node_params *given, struct gp_packed *packed);
void gp_drop_packed(struct gp_packed *packed);
int gp_note_params(struct gp_handle *node, const struct gp_node_params *given,
                   struct gp_packed *packed);

// graph_node.c
int gp_graph_allocates(struct gp_handle *graph, uint64_t address, uint64_t size, int device);
void gp_graph_frees(struct gp_handle *graph, uint64_t address);

// A part of the parameters: a member, or the front of one up to another.
struct gp_part {
    size_t at, size;
};
#define GP_AT(member) offsetof(struct gp_node_params, member)
#define GP_PART(member) ((struct gp_part){GP_AT(member), sizeof(((struct gp_node_params *)NULL)->member)})
#define GP_FRONT(member, until) ((struct gp_part){GP_AT(member), GP_AT(member.until) - GP_AT(member)})
#define GP_NO_CONTEXT ((struct gp_part){0, 0}), NULL

static inline int gp_new_params(struct gp_node_params *full, int type, struct gp_part part,
                                const void *given, struct gp_part context, const void *its) {
    if (given == NULL) return GP_INVALID_VALUE;
    memset(full, 0, sizeof *full);
    full->type = type;
    memcpy((unsigned char *)full + part.at, given, part.size);
    if (its != NULL) memcpy((unsigned char *)full + context.at, its, context.size);
    return GP_SUCCESS;
}

// graph_exec.c
int gp_set_child(void *exec, void *node, void *child);

// graph_host.c
int gp_stage(struct gp_handle *graph, const struct gp_box *box, const struct gp_copy_3d *copy,
             bool out, struct gp_staged *staged);
int gp_keep_staged(struct gp_staged_list *list, const struct gp_staged *staged);
int gp_copy_staged(struct gp_staged_list *to, const struct gp_staged_list *from,
                   struct gp_handle *node);
void gp_match_staged(struct gp_staged_list *list, struct gp_handle *graph);
void gp_forget_staged(struct gp_staged_list *list, struct gp_handle *node);
void gp_drop_slot(struct gp_slot *slot);
bool gp_staged_is_mapped(const struct gp_staged_list *list);
bool gp_staged_reads(const struct gp_staged_list *list);
int gp_send_staged(const struct gp_staged_list *list);
int gp_mark_early(struct gp_staged_list *list, const struct gp_early_list *early);
int gp_check_staged(const struct gp_staged_list *list, const struct gp_handle *node,
                    const struct gp_packed *packed);
int gp_expect_staged(const struct gp_staged_list *list, uint64_t stream, struct gp_handle *exec, bool early);

// graph_order.c
// Find the copies to the host that have host nodes behind them; all of the graph is known. It fails where a
// copy from the host may come behind a host node.
int gp_find_early(struct gp_handle *graph, struct gp_early_list *found);
bool gp_same_early(const struct gp_early_list *one, const struct gp_early_list *other);

// graph_call.c
int gp_keep_call(struct gp_call_list *list, uint64_t id, struct gp_handle *node);
int gp_copy_calls(struct gp_call_list *to, const struct gp_call_list *from, struct gp_handle *node);
int gp_gather_calls(struct gp_call_list *to, struct gp_handle *graph, struct gp_handle *node);
void gp_forget_calls(struct gp_call_list *list, struct gp_handle *node, uint64_t id);
void gp_drop_calls(struct gp_call_list *list);
int gp_replace_call(struct gp_call_list *list, struct gp_handle *node, uint64_t before,
                    uint64_t now);
int gp_replace_calls(struct gp_call_list *list, struct gp_handle *graph);

// graph_object.c
void gp_share_objects(struct gp_object **to, struct gp_handle *graph);
void gp_release_objects(struct gp_object **list);

#endif
