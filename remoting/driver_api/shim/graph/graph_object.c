// User objects: the program is told when no graph uses one any more. They never leave this
// machine. The destructor runs in the thread that gives up the last reference.
#include "graph.h"

#include <stdlib.h>

struct object {
    struct gp_handle handle;
    long references;
    void *data;
    void (*destroy)(void *);
};

// References of one graph or executable.
struct gp_object {
    struct gp_object *next;
    struct object *object;
    long count;
};

static void release(struct object *object, long count) {
    if (__atomic_sub_fetch(&object->references, count, __ATOMIC_ACQ_REL) > 0) return;
    object->handle.magic = 0;
    object->destroy(object->data);
    free(object);
}

GP_EXPORT int cuUserObjectCreate(void **made, void *data, void (*destroy)(void *),
                                 unsigned references, unsigned flags) {
    GP_CHECK(gp_ready());
    // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC is the one flag, and it must be given.
    if (made == NULL || destroy == NULL || references == 0 || flags != 1) return GP_INVALID_VALUE;
    struct object *object = calloc(1, sizeof *object);
    if (object == NULL) return GP_OUT_OF_MEMORY;
    *object = (struct object){{.magic = GP_MAGIC, .kind = GP_USER_OBJECT}, references, data,
                              destroy};
    *made = object;
    return GP_SUCCESS;
}

static int retain(void *object, unsigned count) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(object, GP_USER_OBJECT));
    if (count == 0) return GP_INVALID_VALUE;
    __atomic_add_fetch(&((struct object *)object)->references, count, __ATOMIC_ACQ_REL);
    return GP_SUCCESS;
}

GP_EXPORT int cuUserObjectRetain(void *object, unsigned count) { return retain(object, count); }

GP_EXPORT int cuUserObjectRelease(void *object, unsigned count) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(object, GP_USER_OBJECT));
    if (count == 0) return GP_INVALID_VALUE;
    release(object, count);
    return GP_SUCCESS;
}

static struct gp_object **find(struct gp_object **list, struct object *object) {
    while (*list != NULL && (*list)->object != object) list = &(*list)->next;
    return list;
}

static int keep(struct gp_object **list, struct object *object, long count) {
    struct gp_object **found = find(list, object);
    if (*found == NULL) {
        struct gp_object *made = calloc(1, sizeof *made);
        if (made == NULL) return GP_OUT_OF_MEMORY;
        *made = (struct gp_object){NULL, object, 0};
        *found = made;
    }
    (*found)->count += count;
    return GP_SUCCESS;
}

GP_EXPORT int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(graph, GP_GRAPH));
    GP_CHECK(gp_check(object, GP_USER_OBJECT));
    if (count == 0 || flags > 1) return GP_INVALID_VALUE;
    GP_CHECK(keep(&GP_GRAPH_OF(graph)->objects, object, count));
    // CU_GRAPH_USER_OBJECT_MOVE: the caller's references become the graph's.
    return flags & 1 ? GP_SUCCESS : retain(object, count);
}

GP_EXPORT int cuGraphReleaseUserObject(void *graph, void *object, unsigned count) {
    GP_CHECK(gp_ready());
    GP_CHECK(gp_check(graph, GP_GRAPH));
    GP_CHECK(gp_check(object, GP_USER_OBJECT));
    struct gp_object **found = find(&GP_GRAPH_OF(graph)->objects, object);
    if (count == 0 || *found == NULL || (*found)->count < (long)count) return GP_INVALID_VALUE;
    struct gp_object *one = *found;
    one->count -= count;
    if (one->count == 0) {
        *found = one->next;
        free(one);
    }
    release(object, count);
    return GP_SUCCESS;
}

// A clone or an executable keeps the same objects, those of graphs within as well: one reference each
// is enough.
void gp_share_objects(struct gp_object **to, struct gp_handle *graph) {
    const struct gp_graph *of = GP_GRAPH_OF(graph);
    for (struct gp_object *from = of->objects; from != NULL; from = from->next) {
        if (keep(to, from->object, 1) == GP_SUCCESS) {
            __atomic_add_fetch(&from->object->references, 1, __ATOMIC_ACQ_REL);
        }
    }
    for (unsigned at = 0; at < of->count; at++) {
        const struct gp_node *node = GP_NODE_OF(of->nodes[at]);
        for (unsigned child = 0; child < node->child_count; child++) {
            gp_share_objects(to, node->children[child]);
        }
    }
}

void gp_release_objects(struct gp_object **list) {
    while (*list != NULL) {
        struct gp_object *gone = *list;
        *list = gone->next;
        release(gone->object, gone->count);
        free(gone);
    }
}
