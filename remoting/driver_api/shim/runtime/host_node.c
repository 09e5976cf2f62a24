// Host nodes of graphs: the numbers by which the worker calls them. Graphs and executables that have
// a node keep it, each with a reference; it ends behind the launches that were made before the last
// of them went.
#include "runtime.h"

#include <stdlib.h>

#define NODES_MAX 65536
#define TURN_MASK 0x3fffffffULL

struct host_node {
    void (*function)(void *);
    void *data;
    uint64_t turn;  // of the place, so that a number stands for one node for ever
    long references;
    uint64_t last;  // once there are none: a call that is newer than all launches
    int server;
    unsigned next;  // of those that are free, or that end; counted from one
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // all of the following
static struct host_node *nodes;
static unsigned node_count, node_room;
static unsigned free_nodes, ending_nodes;
static unsigned ending_count;

static uint64_t number_of(unsigned at) { return GP_NODE_NUMBER | nodes[at].turn << 32 | at; }

static struct host_node *find(uint64_t id) {
    unsigned at = (unsigned)id;
    bool known = (id & GP_NODE_NUMBER) && at < node_count && number_of(at) == id;
    return known ? &nodes[at] : NULL;
}

static bool take_place(unsigned *place) {
    if (free_nodes != 0) {
        *place = free_nodes - 1;
        free_nodes = nodes[*place].next;
        return true;
    }
    if (node_count == node_room) {
        unsigned room = node_room ? node_room * 2 : 64;
        struct host_node *grown = room > NODES_MAX ? NULL : realloc(nodes, room * sizeof *grown);
        if (grown == NULL) return false;
        nodes = grown;
        node_room = room;
    }
    *place = node_count++;
    nodes[*place].turn = 0;
    return true;
}

int gp_host_node_new(void (*function)(void *), void *data, uint64_t *id) {
    unsigned at;
    pthread_mutex_lock(&lock);
    bool room = take_place(&at);
    if (room) {
        nodes[at] = (struct host_node){function, data, (nodes[at].turn + 1) & TURN_MASK, 1, 0,
                                       gp_here(), 0};
        *id = number_of(at);
    }
    pthread_mutex_unlock(&lock);
    return room ? GP_SUCCESS : GP_OUT_OF_MEMORY;
}

bool gp_host_node_at(uint64_t id, void (**function)(void *), void **data) {
    pthread_mutex_lock(&lock);
    const struct host_node *found = find(id);
    if (found != NULL) {
        *function = found->function;
        *data = found->data;
    }
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

void gp_host_node_keep(uint64_t id) {
    pthread_mutex_lock(&lock);
    struct host_node *found = find(id);
    if (found != NULL) found->references++;
    pthread_mutex_unlock(&lock);
}

bool gp_host_nodes_ending(void) { return __atomic_load_n(&ending_count, __ATOMIC_RELAXED) != 0; }

void gp_host_nodes_end(int server, uint64_t oldest) {
    pthread_mutex_lock(&lock);
    for (unsigned *at = &ending_nodes; *at != 0;) {
        unsigned place = *at;
        struct host_node *node = &nodes[place - 1];
        if (node->server != server || node->last > oldest) {
            at = &node->next;
            continue;
        }
        *at = node->next;
        node->turn = (node->turn + 1) & TURN_MASK;
        node->next = free_nodes;
        free_nodes = place;
        __atomic_fetch_sub(&ending_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
}

int gp_host_node_release(uint64_t id) {
    int server = -1;
    pthread_mutex_lock(&lock);
    struct host_node *found = find(id);
    if (found != NULL && --found->references == 0) {
        server = found->server;
        found->last = gp_new_id();
        found->next = ending_nodes;
        ending_nodes = (unsigned)id + 1;
        __atomic_fetch_add(&ending_count, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&lock);
    return server;
}
