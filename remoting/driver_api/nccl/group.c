// Groups: operations between ncclGroupStart and ncclGroupEnd, which go to each server together.
#define _GNU_SOURCE
#include "nccl.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define OPERATIONS_MAX 4096  // of one group, as the worker takes them
#define BEGINS_MAX 64        // a lease has fewer devices

static __thread struct {
    int depth, failed;
    unsigned count, capacity, begin_count;
    struct operation *operations;
    int *devices;
    struct begin *begins;
} group;

bool nc_in_group(void) { return group.depth > 0; }

int nc_group_start(void) {
    group.depth++;
    return SUCCESS;
}

static int keep(const struct comm *comm, const struct operation *operation) {
    if (group.count >= OPERATIONS_MAX) return INVALID_USAGE;
    if (group.count == group.capacity) {
        unsigned capacity = group.capacity ? 2 * group.capacity : 16;
        struct operation *operations =
            realloc(group.operations, capacity * sizeof *group.operations);
        if (operations != NULL) group.operations = operations;
        int *devices = realloc(group.devices, capacity * sizeof *group.devices);
        if (devices != NULL) group.devices = devices;
        if (operations == NULL || devices == NULL) return SYSTEM_ERROR;
        group.capacity = capacity;
    }
    group.devices[group.count] = comm->device;
    group.operations[group.count++] = *operation;
    return SUCCESS;
}

int nc_add(struct comm *comm, const struct operation *operation) {
    if (comm->failed) return comm->failed;
    if (group.depth > 0) {
        int result = keep(comm, operation);
        if (result != SUCCESS) group.failed = result;
        return result;
    }
    struct operation copied = *operation;
    return nc_post(&comm->device, &copied, 1);
}

// What is of one server goes to it in its order, as one group.
static int send_group(void) {
    int result = SUCCESS;
    struct operation *part = malloc(group.count * sizeof *part);
    int *devices = malloc(group.count * sizeof *devices);
    bool *sent = calloc(group.count, sizeof *sent);
    if (part == NULL || devices == NULL || sent == NULL) result = SYSTEM_ERROR;
    for (unsigned first = 0; first < group.count && result == SUCCESS; first++) {
        if (sent[first]) continue;
        int server = nc_server(group.devices[first]);
        unsigned count = 0;
        for (unsigned at = first; at < group.count; at++) {
            if (sent[at] || nc_server(group.devices[at]) != server) continue;
            devices[count] = group.devices[at];
            part[count++] = group.operations[at];
            sent[at] = true;
        }
        result = nc_post(devices, part, count);
    }
    free(part);
    free(devices);
    free(sent);
    return result;
}

static void *begin_one(void *argument) {
    struct begin *begin = argument;
    struct comm *comm = begin->made;
    struct { struct id id; struct settings settings; } data = {begin->id, begin->settings};
    struct answer answer;
    const uint64_t values[4] = {INIT, comm->number, (uint64_t)comm->count, (uint64_t)comm->rank};
    begin->result = nc_ask(comm->device, values, &data, sizeof data, &answer);
    if (begin->result == SUCCESS) {
        comm->failed = SUCCESS;
        *begin->target = comm;
    } else {
        comm->magic = 0;
        free(comm);
        *begin->target = NULL;
    }
    return NULL;
}

int nc_begin(struct begin begin) {
    if (group.depth == 0) {
        begin_one(&begin);
        return begin.result;
    }
    if (group.begins == NULL) group.begins = calloc(BEGINS_MAX, sizeof *group.begins);
    if (group.begins == NULL || group.begin_count >= BEGINS_MAX) {
        free(begin.made);
        return group.failed = INVALID_USAGE;
    }
    group.begins[group.begin_count++] = begin;
    return SUCCESS;
}

// All at once, as each waits for the others.
static int begin_all(void) {
    pthread_t threads[BEGINS_MAX];
    unsigned started = 0;
    int result = SUCCESS;
    for (; started < group.begin_count; started++) {
        if (pthread_create(&threads[started], NULL, begin_one, &group.begins[started]) != 0) break;
    }
    if (started < group.begin_count) result = SYSTEM_ERROR;
    for (unsigned at = 0; at < started; at++) {
        pthread_join(threads[at], NULL);
        if (group.begins[at].result != SUCCESS) result = group.begins[at].result;
    }
    return result;
}

int nc_group_end(void) {
    if (group.depth == 0) return INVALID_USAGE;
    if (--group.depth > 0) return SUCCESS;
    int result = group.failed;
    if (result == SUCCESS && group.begin_count) result = begin_all();
    if (result == SUCCESS && group.count) result = send_group();
    free(group.operations);
    free(group.devices);
    free(group.begins);
    memset(&group, 0, sizeof group);
    return result;
}
