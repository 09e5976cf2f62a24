// Turns of host functions, between the driver's threads and the worker's thread that tells the client.
//
// The driver keeps a stream until its callback returns. One in Python would have to wait for the others
// of the worker's threads first, so where the stream need not wait for the function this one is called.
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))
#define UNCHECKED UINT64_MAX  // in place of a ticket: whether anybody expects the function is not known

struct turn {
    uint64_t number, ticket;
    int64_t status;
};

struct turns {
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct turn *items;  // a ring
    size_t room, first, count;
};

// What a callback of the driver's is given.
struct expected {
    struct turns *turns;
    uint64_t number;
};

EXPORT struct turns *gpupool_turns_new(void) {
    struct turns *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->some, NULL);
    return made;
}

static bool grow(struct turns *turns) {
    size_t room = turns->room ? turns->room * 2 : 64;
    struct turn *items = calloc(room, sizeof *items);
    if (items == NULL) return false;
    for (size_t at = 0; at < turns->count; at++) {
        items[at] = turns->items[(turns->first + at) % turns->room];
    }
    free(turns->items);
    turns->items = items;
    turns->room = room;
    turns->first = 0;
    return true;
}

EXPORT int gpupool_turns_put(struct turns *turns, uint64_t number, int64_t status, uint64_t ticket) {
    pthread_mutex_lock(&turns->lock);
    bool room = turns->count < turns->room || grow(turns);
    if (room) {
        turns->items[(turns->first + turns->count++) % turns->room] = (struct turn){number, ticket, status};
    }
    pthread_cond_signal(&turns->some);
    pthread_mutex_unlock(&turns->lock);
    return room;
}

// Wait for the next.
EXPORT void gpupool_turns_get(struct turns *turns, struct turn *found) {
    pthread_mutex_lock(&turns->lock);
    while (turns->count == 0) pthread_cond_wait(&turns->some, &turns->lock);
    *found = turns->items[turns->first];
    turns->first = (turns->first + 1) % turns->room;
    turns->count--;
    pthread_mutex_unlock(&turns->lock);
}

// What the callback is to be given for a function; NULL where there is no memory.
EXPORT struct expected *gpupool_turns_expect(struct turns *turns, uint64_t number) {
    struct expected *made = malloc(sizeof *made);
    if (made != NULL) *made = (struct expected){turns, number};
    return made;
}

EXPORT void gpupool_turns_forget(struct expected *expected) { free(expected); }

EXPORT void gpupool_turns_callback(void *stream, int status, void *data) {
    (void)stream;
    struct expected *expected = data;
    gpupool_turns_put(expected->turns, expected->number, status, UNCHECKED);
    free(expected);
}
