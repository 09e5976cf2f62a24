// Turns of host functions, between the driver's threads and the worker's thread that tells the client.
//
// The driver keeps a stream until its callback returns. One in Python would have to wait for the others
// of the worker's threads first, so where the stream need not wait for the function this one is called.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "generated_records.h"
#include "launcher.h"

struct turn {
    uint64_t number, ticket;
    int64_t status;
};

// What a callback of the driver's is given. Those to which no stream has come yet are in a list, unless
// the client has heard already that none will.
struct expected {
    struct turns *turns;
    uint64_t number;
    struct expected *next, **here;  // NULL: in no list
};

struct turns {
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct turn *items;  // a ring
    size_t room, first, count;
    struct expected *expected, **expected_end;
};

EXPORT struct turns *gpupool_turns_new(void) {
    struct turns *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->some, NULL);
    made->expected_end = &made->expected;
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

// With the lock held.
static bool put(struct turns *turns, uint64_t number, int64_t status, uint64_t ticket) {
    bool room = turns->count < turns->room || grow(turns);
    if (room) {
        turns->items[(turns->first + turns->count++) % turns->room] = (struct turn){number, ticket, status};
    }
    pthread_cond_signal(&turns->some);
    return room;
}

EXPORT int gpupool_turns_put(struct turns *turns, uint64_t number, int64_t status, uint64_t ticket) {
    pthread_mutex_lock(&turns->lock);
    bool room = put(turns, number, status, ticket);
    pthread_mutex_unlock(&turns->lock);
    return room;
}

// Wait for the next turns; returns how many there were, at most `most`.
EXPORT size_t gpupool_turns_get(struct turns *turns, struct turn *found, size_t most) {
    pthread_mutex_lock(&turns->lock);
    while (turns->count == 0) pthread_cond_wait(&turns->some, &turns->lock);
    size_t count = turns->count < most ? turns->count : most;
    for (size_t at = 0; at < count; at++) {
        found[at] = turns->items[turns->first];
        turns->first = (turns->first + 1) % turns->room;
    }
    turns->count -= count;
    pthread_mutex_unlock(&turns->lock);
    return count;
}

// With the lock held.
static void take_out(struct expected *expected) {
    if (expected->here == NULL) return;
    *expected->here = expected->next;
    if (expected->next != NULL) {
        expected->next->here = expected->here;
    } else {
        expected->turns->expected_end = expected->here;
    }
    expected->here = NULL;
}

// What the callback is to be given for a function; NULL where there is no memory.
EXPORT struct expected *gpupool_turns_expect(struct turns *turns, uint64_t number) {
    struct expected *made = malloc(sizeof *made);
    if (made == NULL) return NULL;
    pthread_mutex_lock(&turns->lock);
    *made = (struct expected){turns, number, NULL, turns->expected_end};
    *turns->expected_end = made;
    turns->expected_end = &made->next;
    pthread_mutex_unlock(&turns->lock);
    return made;
}

// The driver will not call.
EXPORT void gpupool_turns_forget(struct expected *expected) {
    struct turns *turns = expected->turns;
    pthread_mutex_lock(&turns->lock);
    take_out(expected);
    pthread_mutex_unlock(&turns->lock);
    free(expected);
}

// Expect no stream to come to any function; returns the numbers of some, 0 for none.
EXPORT size_t gpupool_turns_lose(struct turns *turns, uint64_t *numbers, size_t most) {
    size_t count = 0;
    pthread_mutex_lock(&turns->lock);
    while (turns->expected != NULL && count < most) {
        numbers[count++] = turns->expected->number;
        take_out(turns->expected);  // the driver may still call it, and then frees it
    }
    pthread_mutex_unlock(&turns->lock);
    return count;
}

EXPORT void gpupool_turns_callback(void *stream, int status, void *data) {
    (void)stream;
    struct expected *expected = data;
    struct turns *turns = expected->turns;
    pthread_mutex_lock(&turns->lock);
    bool told = expected->here == NULL;  // the client has heard of an error
    take_out(expected);
    if (!told) put(turns, expected->number, status, 0);
    pthread_mutex_unlock(&turns->lock);
    free(expected);
}

bool issue_host_call(const struct launcher *launcher, const unsigned char *at, struct head head,
                     int *status) {
    uint64_t words[3];  // stream, number, whether the stream waits
    void *stream;
    if (launcher->turns == NULL || launcher->driver.add_callback == NULL) return false;
    if (head.size - sizeof head < sizeof words) return false;
    memcpy(words, at, sizeof words);
    if (words[2] != 0 || is_kept(launcher)) return false;
    if (!get(&launcher->streams, words[0], &stream)) return false;
    struct expected *expected = gpupool_turns_expect(launcher->turns, words[1]);
    if (expected == NULL) return false;
    if (launcher->driver.add_callback(stream, gpupool_turns_callback, expected, 0) == 0) {
        *status = 0;
        return true;
    }
    gpupool_turns_forget(expected);
    return false;  // the worker calls again, and tells the client what is wrong
}
