// The lists of graphs: the lock of two, and how they grow.
#include "graph.h"

#include <stdlib.h>

// Captures of several threads change the host functions that a graph calls, and its copies of the host's memory.
pthread_mutex_t gp_graph_lock = PTHREAD_MUTEX_INITIALIZER;

void *gp_grown(void *items, unsigned *room, unsigned count, size_t size) {
    if (count < *room) return items;
    unsigned wanted = *room ? *room * 2 : 4;
    void *grown = realloc(items, wanted * size);
    if (grown != NULL) *room = wanted;
    return grown;
}

int gp_keep_allocation(struct gp_allocation_list *list, struct gp_allocation one) {
    void *grown = gp_grown(list->items, &list->room, list->count, sizeof *list->items);
    if (grown == NULL) return GP_OUT_OF_MEMORY;
    list->items = grown;
    list->items[list->count++] = one;
    return GP_SUCCESS;
}
