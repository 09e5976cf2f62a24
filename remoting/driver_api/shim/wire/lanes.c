// Further connections over which large bulk bytes go side by side. lanes.h says how.
#define _GNU_SOURCE
#include "lanes.h"
#include "base.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x4c504730u  // "0GPL"
#define PATIENCE_NS 5000000
#define LOOK_MS 500      // between looks of a lane whether its set is lost
#define SILENCE_MS 3500  // after which a machine that acknowledges nothing is taken for dead
#define ALLOCATION_COST 24  // what malloc takes besides, at most

struct chunk {
    uint32_t magic, size;
    uint64_t stripe, offset;
};

struct kept {
    struct chunk head;
    struct kept *next;
    unsigned char bytes[];
};

struct lane {
    struct gp_lanes *lanes;
    struct gp_link link;
};

struct gp_lanes {
    bool sends, lost;
    int count, most;
    struct lane lane[GP_LANES_MAX];
    pthread_mutex_t lock;
    pthread_cond_t changed;   // for lanes that receive, or send chunks of any stripe
    pthread_cond_t widened;   // for lanes that send chunks of wide stripes only
    pthread_cond_t finished;  // for who waits for a stripe
    // The stripe at hand, of which [start, end) is in memory; started and done are bytes of it.
    uint64_t stripe, start, end, started, done;
    unsigned char *memory;
    int busy;  // lanes that use that memory
    struct kept *kept;
    uint64_t kept_bytes, ahead_max;  // with what keeping them costs
};

// Keep-alive probes are not sent while bytes are in flight, and the kernel tries to deliver those
// for a quarter of an hour.
bool gp_peer_is_dead(const struct gp_link *link) {
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (getsockopt(link->socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    return info.tcpi_unacked > 0 && info.tcpi_retransmits > 0 &&
           info.tcpi_last_ack_recv > SILENCE_MS;
}

bool gp_lanes_are_dead(struct gp_lanes *lanes) {
    bool dead = false;
    for (int at = 0; at < lanes->count; at++) dead |= gp_peer_is_dead(&lanes->lane[at].link);
    return dead;
}

// With the lock.
static void lose(struct gp_lanes *lanes) {
    lanes->lost = true;
    for (int at = 0; at < lanes->count; at++) shutdown(lanes->lane[at].link.socket, SHUT_RDWR);
    pthread_cond_broadcast(&lanes->changed);
    pthread_cond_broadcast(&lanes->widened);
    pthread_cond_broadcast(&lanes->finished);
}

static bool await_socket(struct lane *lane, short events) {
    struct pollfd entry = {.fd = lane->link.socket, .events = events};
    if (poll(&entry, 1, LOOK_MS) < 0 && errno != EINTR) return false;
    return !__atomic_load_n(&lane->lanes->lost, __ATOMIC_RELAXED);
}

static bool put(struct lane *lane, const void *bytes, size_t size) {
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    while (part.iov_len > 0) {
        ssize_t sent = gp_send(&lane->link, &part, 1);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!await_socket(lane, POLLOUT) || gp_peer_is_dead(&lane->link)) return false;
            continue;
        }
        if (sent <= 0) return false;
        part.iov_base = (unsigned char *)part.iov_base + sent;
        part.iov_len -= (size_t)sent;
    }
    return true;
}

static bool get(struct lane *lane, void *target, size_t size) {
    unsigned char *at = target;
    while (size > 0) {
        ssize_t got = gp_receive(&lane->link, at, size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            if (!await_socket(lane, POLLIN)) return false;
            continue;
        }
        if (got <= 0) return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

// With the lock: a lane is done with bytes of the part at hand.
static void count_done(struct gp_lanes *lanes, uint64_t size) {
    lanes->done += size;
    lanes->busy--;
    bool over = lanes->lost || lanes->done == lanes->end - lanes->start;
    if (over) pthread_cond_broadcast(&lanes->finished);
}

// With the lock: wait until there is a chunk for a lane that sends, or the set is lost.
static void await_chunk(struct lane *lane) {
    struct gp_lanes *lanes = lane->lanes;
    bool wide = lane - lanes->lane >= GP_NARROW_LANES;
    pthread_cond_t *change = wide ? &lanes->widened : &lanes->changed;
    uint64_t least = wide ? GP_WIDE_STRIPE : 0;
    while (!lanes->lost && (lanes->started == lanes->end || lanes->end < least)) {
        pthread_cond_wait(change, &lanes->lock);
    }
}

static void *send_chunks(void *argument) {
    struct lane *lane = argument;
    struct gp_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    for (;;) {
        await_chunk(lane);
        if (lanes->lost) break;
        uint64_t left = lanes->end - lanes->started;
        uint32_t most = lanes->end < GP_SMALL_STRIPE ? GP_SMALL_CHUNK : GP_LANE_CHUNK;
        uint32_t size = left < most ? (uint32_t)left : most;
        struct chunk head = {MAGIC, size, lanes->stripe, lanes->started};
        const unsigned char *bytes = lanes->memory + lanes->started;
        lanes->started += size;
        lanes->busy++;
        pthread_mutex_unlock(&lanes->lock);
        bool good = put(lane, &head, sizeof head) && put(lane, bytes, size);
        pthread_mutex_lock(&lanes->lock);
        if (!good) lose(lanes);
        count_done(lanes, size);
    }
    pthread_mutex_unlock(&lanes->lock);
    return NULL;
}

// With the lock: whether a chunk is of the part at hand; -1 where it never will be of any.
static int belongs(const struct gp_lanes *lanes, const struct chunk *head) {
    if (head->stripe < lanes->stripe) return -1;
    if (head->stripe > lanes->stripe || head->offset >= lanes->end) return 0;
    if (head->offset < lanes->start || head->size > lanes->end - head->offset) return -1;
    // No byte comes twice, or something could write to a part that is over.
    return head->size > lanes->end - lanes->start - lanes->started ? -1 : 1;
}

static bool is_chunk(const struct chunk *head) {
    return head->magic == MAGIC && head->size > 0 && head->size <= GP_LANE_CHUNK &&
           head->offset % GP_SMALL_CHUNK == 0;
}

// A chunk may be of one byte, which takes far more memory than that.
static uint64_t cost_of(const struct chunk *head) {
    return sizeof(struct kept) + ALLOCATION_COST + head->size;
}

// With the lock: wait until a chunk belongs to the part at hand, for PATIENCE_NS if it can be kept.
static int await_place(struct gp_lanes *lanes, const struct chunk *head) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += PATIENCE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    for (;;) {
        int place = lanes->lost ? -1 : belongs(lanes, head);
        if (place != 0) return place;
        if (lanes->kept_bytes + cost_of(head) > lanes->ahead_max) {
            pthread_cond_wait(&lanes->changed, &lanes->lock);
        } else if (pthread_cond_timedwait(&lanes->changed, &lanes->lock, &until) == ETIMEDOUT) {
            // Another lane may have kept a chunk meanwhile, and then there is no room for this one.
            bool room = lanes->kept_bytes + cost_of(head) <= lanes->ahead_max;
            if (lanes->lost || room) return lanes->lost ? -1 : belongs(lanes, head);
        }
    }
}

// With the lock: read a chunk whose part is not at hand, and keep it.
static bool keep(struct lane *lane, const struct chunk *head) {
    struct gp_lanes *lanes = lane->lanes;
    struct kept *made = malloc(sizeof *made + head->size);
    if (made == NULL) return false;
    lanes->kept_bytes += cost_of(head);
    pthread_mutex_unlock(&lanes->lock);
    made->head = *head;
    bool good = get(lane, made->bytes, head->size);
    pthread_mutex_lock(&lanes->lock);
    made->next = lanes->kept;
    lanes->kept = made;
    pthread_cond_broadcast(&lanes->finished);  // its part may be at hand by now
    return good;
}

static bool receive_chunk(struct lane *lane, const struct chunk *head) {
    struct gp_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    int place = await_place(lanes, head);
    bool good = place >= 0;
    if (place == 0) good = keep(lane, head);
    if (place > 0) {
        unsigned char *target = lanes->memory + (head->offset - lanes->start);
        lanes->started += head->size;
        lanes->busy++;
        pthread_mutex_unlock(&lanes->lock);
        good = get(lane, target, head->size);
        pthread_mutex_lock(&lanes->lock);
        if (!good) lose(lanes);
        count_done(lanes, head->size);
    } else if (!good) {
        lose(lanes);
    }
    pthread_mutex_unlock(&lanes->lock);
    return good;
}

static void *receive_chunks(void *argument) {
    struct lane *lane = argument;
    struct chunk head;
    bool good = true;
    while (good) {
        if (!get(lane, &head, sizeof head) || !is_chunk(&head)) {
            pthread_mutex_lock(&lane->lanes->lock);
            lose(lane->lanes);
            pthread_mutex_unlock(&lane->lanes->lock);
            break;
        }
        good = receive_chunk(lane, &head);
    }
    return NULL;
}

struct gp_lanes *gp_lanes_new(bool sends, int most, uint64_t ahead_max) {
    struct gp_lanes *lanes = calloc(1, sizeof *lanes);
    if (lanes == NULL) return NULL;
    lanes->sends = sends;
    lanes->most = most > GP_LANES_MAX ? GP_LANES_MAX : most;
    lanes->ahead_max = ahead_max;
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&lanes->changed, &attributes);
    pthread_cond_init(&lanes->widened, &attributes);
    pthread_cond_init(&lanes->finished, &attributes);
    pthread_condattr_destroy(&attributes);
    return lanes;
}

bool gp_lanes_add(struct gp_lanes *lanes, const struct gp_link *link) {
    pthread_mutex_lock(&lanes->lock);
    bool good = lanes->count < lanes->most && !lanes->lost;
    if (good) {
        struct lane *lane = &lanes->lane[lanes->count];
        lane->lanes = lanes;
        lane->link = *link;
        gp_link_moved(&lane->link);
        good = gp_start_thread(lanes->sends ? send_chunks : receive_chunks, lane, 0) == 0;
        lanes->count += good;
    }
    pthread_mutex_unlock(&lanes->lock);
    return good;
}

void gp_lanes_end(struct gp_lanes *lanes) {
    if (lanes == NULL) return;
    pthread_mutex_lock(&lanes->lock);
    lose(lanes);
    pthread_mutex_unlock(&lanes->lock);
}

void gp_lanes_forked(struct gp_lanes *lanes) {
    for (int at = 0; lanes != NULL && at < lanes->count; at++) close(lanes->lane[at].link.socket);
}

void gp_lanes_send(struct gp_lanes *lanes, const void *bytes, uint64_t size) {
    pthread_mutex_lock(&lanes->lock);
    lanes->stripe++;
    lanes->start = lanes->started = lanes->done = 0;
    lanes->end = size;
    lanes->memory = (unsigned char *)(uintptr_t)bytes;
    pthread_cond_broadcast(&lanes->changed);
    if (size >= GP_WIDE_STRIPE) pthread_cond_broadcast(&lanes->widened);
    pthread_mutex_unlock(&lanes->lock);
}

void gp_lanes_receive(struct gp_lanes *lanes, void *target, uint64_t offset, uint64_t size) {
    pthread_mutex_lock(&lanes->lock);
    if (offset == 0) lanes->stripe++;
    lanes->start = offset;
    lanes->end = offset + size;
    lanes->started = lanes->done = 0;
    lanes->memory = target;
    pthread_cond_broadcast(&lanes->changed);
    pthread_mutex_unlock(&lanes->lock);
}

// With the lock: take what was kept for the part at hand.
static void take_kept(struct gp_lanes *lanes) {
    struct kept **at = &lanes->kept;
    while (*at != NULL && !lanes->lost) {
        struct kept *one = *at;
        int place = belongs(lanes, &one->head);
        if (place < 0) lose(lanes);
        if (place <= 0) {
            at = &one->next;
            continue;
        }
        memcpy(lanes->memory + (one->head.offset - lanes->start), one->bytes, one->head.size);
        lanes->started += one->head.size;
        lanes->done += one->head.size;
        lanes->kept_bytes -= cost_of(&one->head);
        *at = one->next;
        free(one);
        pthread_cond_broadcast(&lanes->changed);
    }
}

int gp_lanes_wait(struct gp_lanes *lanes, int milliseconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (int64_t)milliseconds % 1000 * 1000000;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    bool late = false;
    pthread_mutex_lock(&lanes->lock);
    for (;;) {
        if (!lanes->sends) take_kept(lanes);
        if (lanes->lost && lanes->busy == 0) break;
        if (!lanes->lost && (late || lanes->done == lanes->end - lanes->start)) break;
        if (lanes->lost) {
            pthread_cond_wait(&lanes->finished, &lanes->lock);  // they are about to notice
        } else {
            late = pthread_cond_timedwait(&lanes->finished, &lanes->lock, &until) == ETIMEDOUT;
        }
    }
    int found = lanes->lost ? -1 : lanes->done == lanes->end - lanes->start;
    pthread_mutex_unlock(&lanes->lock);
    return found;
}
