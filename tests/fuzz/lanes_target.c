// Chunks of a large copy, as a peer may send them over two lanes: any stripe, place and size, in any order.
//
// Each lane and who waits for the copy are threads of the library. Here they are calls within one another: what
// another thread could do is done where one waits, or reads from its socket. Each part of a copy is a piece of
// memory that ends when the library says that the part is over, so a sanitizer sees each later use.
#define _GNU_SOURCE
#include "input.h"
#include "lanes.h"

#undef GP_LANE_CHUNK
#define GP_LANE_CHUNK 64  // small, so that a copy has many
#undef GP_SMALL_CHUNK
#define GP_SMALL_CHUNK GP_LANE_CHUNK  // at whose multiples chunks begin
#include "wire/lanes.c"
#include "chunk.h"

#include <setjmp.h>

#define LANES 2
#define AHEAD_MAX (4 * (GP_LANE_CHUNK + sizeof(struct kept) + ALLOCATION_COST))
#define PARTS_MAX 4

static struct {
    struct input *input;
    struct gp_lanes *lanes;
    unsigned char *memory;  // of the part at hand; NULL: there is none
    uint64_t next;          // where the next part of the stripe begins; 0: a new stripe
    bool running[LANES], waiting, over;
    jmp_buf blocked;
} play;

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until);

int gp_start_thread(void *(*run)(void *), void *argument, int signal_taken) {
    (void)run, (void)argument, (void)signal_taken;
    return 0;
}

void gp_link_moved(struct gp_link *link) { (void)link; }

ssize_t gp_send(struct gp_link *link, struct iovec *parts, int count) {
    (void)link, (void)parts, (void)count;
    return -1;
}

static void end_part(void) {
    free(play.memory);
    play.memory = NULL;
}

// Who wants the copy: it begins a part, or looks whether the one at hand is over.
static void want(void) {
    struct gp_lanes *lanes = play.lanes;
    if (play.over || play.waiting) return;
    if (play.memory == NULL) {
        unsigned byte = take_byte(play.input);
        uint64_t size = (1 + byte % PARTS_MAX) * GP_LANE_CHUNK;
        bool last = byte & 0x80;
        if (last) size -= byte >> 3 & 15;
        play.memory = malloc(size);
        if (play.memory == NULL) abort();
        gp_lanes_receive(lanes, play.memory, play.next, size);
        play.next = last ? 0 : play.next + size;
        return;
    }
    if (lanes->lost && lanes->busy > 0) return;  // it would wait for them
    play.waiting = true;
    // The copy is lost, and lanes that this call is part of still use the memory: it looks again later.
    volatile int found = 0;
    if (setjmp(play.blocked) == 0) found = gp_lanes_wait(lanes, 0);
    play.waiting = false;
    if (lanes->done > lanes->end - lanes->start) abort();
    if (found != 0) end_part();
    if (found < 0) play.over = true;
}

static void run_lane(unsigned at) {
    if (play.running[at] || play.lanes->lost) return;
    play.running[at] = true;
    receive_chunks(&play.lanes->lane[at]);
    play.running[at] = false;
}

// What other threads may do now, without the lock.
static void step(void) {
    if (play.input->left == 0) {
        gp_lanes_end(play.lanes);
        return;
    }
    unsigned byte = take_byte(play.input);
    if (byte < 8) {
        gp_lanes_end(play.lanes);
    } else if (byte & 1) {
        want();
    } else if (byte & 2) {
        run_lane(byte >> 2 & 1);
    }
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock) {
    (void)condition;
    pthread_mutex_unlock(lock);
    if (play.waiting) longjmp(play.blocked, 1);
    step();
    pthread_mutex_lock(lock);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until) {
    (void)condition, (void)until;
    if (play.waiting || play.input->left == 0) return ETIMEDOUT;
    pthread_mutex_unlock(lock);
    step();
    pthread_mutex_lock(lock);
    return take_byte(play.input) & 1 ? ETIMEDOUT : 0;
}

// A chunk's head comes from the input, most of them near the part at hand; its bytes are all the same.
ssize_t gp_receive(struct gp_link *link, void *target, size_t size) {
    (void)link;
    step();
    if (play.input->left == 0) return 0;
    if (size != sizeof(struct chunk)) {
        size_t part = take_byte(play.input) & 1 ? size : 1 + size / 2;
        memset(target, 0x5a, part);
        return (ssize_t)part;
    }
    struct chunk head = take_chunk(play.input, play.lanes);
    memcpy(target, &head, sizeof head);
    return sizeof head;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct input input = {bytes, size};
    struct gp_link link = {.socket = -1};
    memset(&play, 0, sizeof play);
    play.input = &input;
    play.lanes = gp_lanes_new(false, LANES, AHEAD_MAX);
    if (play.lanes == NULL) abort();
    for (int at = 0; at < LANES; at++)
        if (!gp_lanes_add(play.lanes, &link)) abort();
    if (gp_lanes_add(play.lanes, &link)) abort();
    while (input.left > 0 && !play.lanes->lost) step();
    gp_lanes_end(play.lanes);
    if (play.lanes->busy != 0) abort();
    if (play.memory != NULL && gp_lanes_wait(play.lanes, 0) != -1) abort();
    end_part();
    uint64_t kept_bytes = 0;
    for (struct kept *one = play.lanes->kept, *next; one != NULL; one = next) {
        next = one->next;
        kept_bytes += cost_of(&one->head);
        free(one);
    }
    // Lanes that wait at once for the part at hand may each keep a chunk.
    uint64_t most = AHEAD_MAX / 4 * (4 + LANES - 1);
    if (kept_bytes != play.lanes->kept_bytes || kept_bytes > most) abort();
    pthread_cond_destroy(&play.lanes->changed);
    pthread_cond_destroy(&play.lanes->finished);
    pthread_mutex_destroy(&play.lanes->lock);
    free(play.lanes);
    return 0;
}
