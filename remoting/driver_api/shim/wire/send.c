// The buffer of a line, and its sending. line.h says how a line works.
#define _GNU_SOURCE
#include "line.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#define FRAME_MAGIC 0x47504331U   // "1CPG"
#define STRIPE_MAGIC 0x47504332U  // the bulk bytes come by the lanes
#define FLUSH_SIZE (32 * 1024)
#define FLUSH_DELAY_NS 50000
#define LOOK_SENDING_MS 200   // between looks of a thread that sends, which gpupool run cannot wake
#define LANES_LOOK_MS 5       // the same while lanes send for it
#define LEAVING_NS 200000000  // for what is left to send when the program ends

static __thread struct line *opened;  // from gp_open to gp_close

static bool somebody_reads(struct line *line) {
    pthread_mutex_lock(&line->read_lock);
    bool found = line->reading;
    pthread_mutex_unlock(&line->read_lock);
    return found;
}

// Read what the worker said before it closed its end, such as why; then the session is lost.
static void hear_last_words(struct line *line) {
    while (!gp_line_is_lost(line)) {
        pthread_mutex_lock(&line->read_lock);
        while (line->reading && !gp_line_is_lost(line)) {
            pthread_cond_wait(&line->answered, &line->read_lock);
        }
        pthread_mutex_unlock(&line->read_lock);
        gp_line_await(line, NULL);
    }
}

// Send everything; reads answers meanwhile, so that two full socket buffers cannot block each
// other for ever.
static void send_all(struct line *line, struct iovec *parts, int count) {
    int64_t looked = gp_now_ns();
    while (count > 0 && !gp_line_is_lost(line)) {
        ssize_t sent = gp_send(line->link, parts, count);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (line->leaving != 0 && gp_now_ns() > line->leaving) {
                gp_line_lose_one(line);
                return;
            }
            if (errno == EPIPE || errno == ECONNRESET) {
                hear_last_words(line);
                return;
            }
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                gp_line_lose(line, "the connection to the server broke");
                return;
            }
            bool others = somebody_reads(line);
            struct pollfd entry = {.fd = line->link->socket};
            entry.events = others ? POLLOUT : POLLIN | POLLOUT;
            // A reader that ends meanwhile leaves the reading to us, so the wait has an end.
            if (poll(&entry, 1, 20) == 0 && gp_now_ns() - looked > LOOK_SENDING_MS * 1000000LL) {
                looked = gp_now_ns();
                if (!gp_line_still_there(line)) return;
            }
            if (!others && (entry.revents & POLLIN)) gp_line_await(line, NULL);
            continue;
        }
        size_t left = (size_t)sent;
        while (count > 0 && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (unsigned char *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
}

// Send bulk bytes by the lanes; reads answers meanwhile, as send_all does.
static void send_stripe(struct line *line, struct gp_lanes *lanes, const void *bulk, size_t size) {
    int64_t looked = gp_now_ns();
    int over;
    gp_lanes_send(lanes, bulk, size);
    while ((over = gp_lanes_wait(lanes, LANES_LOOK_MS)) == 0) {
        struct pollfd entry = {.fd = line->link->socket, .events = POLLIN};
        if (!somebody_reads(line) && poll(&entry, 1, 0) > 0) gp_line_await(line, NULL);
        if (gp_now_ns() - looked > LOOK_SENDING_MS * 1000000LL) {
            looked = gp_now_ns();
            gp_line_still_there(line);  // which ends the lanes where it is not
        }
    }
    if (over < 0) gp_line_lose(line, LANES_BROKE);
}

static void send_frame(struct line *line, const void *bulk, size_t bulk_size, struct gp_lanes *lanes) {
    struct buffer *full = line->open_buffer;
    line->open_buffer = line->spare_buffer;
    line->open_buffer->used = sizeof(struct frame);
    pthread_mutex_unlock(&line->line_lock);
    uint32_t magic = lanes != NULL ? STRIPE_MAGIC : FRAME_MAGIC;
    struct frame head = {magic, (uint32_t)(full->used - sizeof head), bulk_size};
    memcpy(full->bytes, &head, sizeof head);
    struct iovec parts[2] = {
        {full->bytes, full->used},
        {(void *)(uintptr_t)bulk, bulk_size},
    };
    send_all(line, parts, bulk_size && lanes == NULL ? 2 : 1);
    line->spare_buffer = full;
    if (lanes != NULL && !gp_line_is_lost(line)) send_stripe(line, lanes, bulk, bulk_size);
}

void gp_line_send(struct line *line, const void *bulk, size_t bulk_size) {
    send_frame(line, bulk, bulk_size, NULL);
}

static void flush(struct line *line) {
    pthread_mutex_lock(&line->send_lock);
    pthread_mutex_lock(&line->line_lock);
    if (line->open_buffer != NULL && line->open_buffer->used > sizeof(struct frame)) {
        gp_line_send(line, NULL, 0);
    } else {
        pthread_mutex_unlock(&line->line_lock);
    }
    pthread_mutex_unlock(&line->send_lock);
}

void gp_flush(void) { flush(gp_line_here()); }

// Another thread may hold the locks for long, or this one itself, in whose middle a signal has the
// program end; then what is left is nobody's any more.
void gp_leave(void) {
    for (int at = 0; at < gp_line_count; at++) {
        struct line *line = gp_lines[at];
        if (line == NULL || gp_line_is_lost(line)) continue;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LEAVING_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_mutex_timedlock(&line->send_lock, &until) != 0) continue;
        if (pthread_mutex_timedlock(&line->line_lock, &until) == 0) {
            line->leaving = gp_now_ns() + LEAVING_NS;
            if (line->open_buffer->used > sizeof(struct frame)) {
                gp_line_send(line, NULL, 0);
            } else {
                pthread_mutex_unlock(&line->line_lock);
            }
            line->leaving = 0;
        }
        pthread_mutex_unlock(&line->send_lock);
    }
}

void *gp_line_flush_late(void *argument) {
    struct line *line = argument;
    prctl(PR_SET_TIMERSLACK, 1UL);
    const struct timespec pause = {.tv_nsec = FLUSH_DELAY_NS};
    while (!gp_line_is_lost(line)) {
        pthread_mutex_lock(&line->line_lock);
        while (line->open_buffer->used <= sizeof(struct frame)) {
            line->flusher_waits = true;
            pthread_cond_wait(&line->dirty, &line->line_lock);
        }
        line->flusher_waits = false;
        pthread_mutex_unlock(&line->line_lock);
        nanosleep(&pause, NULL);
        flush(line);
    }
    return NULL;
}

unsigned char *gp_line_append(struct line *line, int op, int flags, size_t size, int device) {
    size = (size + 7) & ~(size_t)7;
    while (line->open_buffer->used + size + 16 > BUFFER_SIZE) {
        pthread_mutex_unlock(&line->line_lock);
        flush(line);
        pthread_mutex_lock(&line->line_lock);
    }
    unsigned char *at = line->open_buffer->bytes + line->open_buffer->used;
    if (device >= 0 && device != line->device) {
        struct record select = {GP_SET_DEVICE, 0, 16};
        uint64_t value = (uint64_t)device;
        memcpy(at, &select, sizeof select);
        memcpy(at + 8, &value, sizeof value);
        line->device = device;
        line->open_buffer->used += 16;
        at += 16;
    }
    struct record head = {(uint16_t)op, (uint16_t)flags, (uint32_t)size};
    memcpy(at, &head, sizeof head);
    memset(at + size - 8, 0, size > sizeof head ? 8 : 0);  // the padding
    line->open_buffer->used += size;
    line->position++;
    return at + sizeof head;
}

// Host functions that are pending must not get behind what waits for them; see host.c.
void gp_line_gate(int op, uint64_t size, uint64_t bulk) {
    if (__builtin_expect(__atomic_load_n(&gp_hosts_holding, __ATOMIC_RELAXED) != 0, 0)) {
        gp_hooks.host_gate(op, size, bulk);
    }
}

unsigned char *gp_open(int op, int flags, size_t size) {
    if (sizeof(struct record) + size > BUFFER_SIZE - 64) return NULL;
    gp_line_gate(op, size, 0);
    int device = gp_place();
    struct line *line = gp_line_here();
    if (gp_several) opened = line;
    pthread_mutex_lock(&line->line_lock);
    return gp_line_append(line, op, flags, sizeof(struct record) + size, device);
}

void gp_close(void) {
    struct line *line = gp_several ? opened : gp_only_line;
    bool full = line->open_buffer->used >= FLUSH_SIZE;
    if (!full && line->flusher_waits) {
        line->flusher_waits = false;
        pthread_cond_signal(&line->dirty);
    }
    pthread_mutex_unlock(&line->line_lock);
    if (full) flush(line);
}

uint64_t gp_opened_position(void) { return (gp_several ? opened : gp_only_line)->position; }

uint64_t gp_position(void) {
    struct line *line = gp_line_here();
    pthread_mutex_lock(&line->line_lock);
    uint64_t found = line->position;
    pthread_mutex_unlock(&line->line_lock);
    return found;
}

bool gp_has_hung_up(void) {
    struct pollfd entry = {.fd = gp_line_here()->link->socket, .events = POLLRDHUP};
    return poll(&entry, 1, 0) != 0;
}

int gp_post(int op, const uint64_t *values, int count) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_hooks.push_mapped();
    unsigned char *at = gp_open(op, 0, (size_t)count * 8);
    memcpy(at, values, (size_t)count * 8);
    gp_close();
    return gp_several && gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}

int gp_post_bulk(int op, const uint64_t *values, int count, const void *bulk, size_t size) {
    gp_line_gate(op, 0, size);
    struct line *line = gp_line_here();
    int device = gp_place();
    pthread_mutex_lock(&line->send_lock);
    pthread_mutex_lock(&line->line_lock);
    // gp_line_append() would take send_lock again, so room is made here.
    if (line->open_buffer->used + (size_t)count * 8 + 64 > BUFFER_SIZE) {
        gp_line_send(line, NULL, 0);
        pthread_mutex_lock(&line->line_lock);
    }
    size_t whole = sizeof(struct record) + (size_t)count * 8;
    unsigned char *at = gp_line_append(line, op, 0, whole, device);
    memcpy(at, values, (size_t)count * 8);
    bool large = op == GP_COPY_IN && size >= GP_STRIPE_MIN;
    if (large) gp_line_carried(line, size);
    send_frame(line, bulk, size, large ? __atomic_load_n(&line->up, __ATOMIC_ACQUIRE) : NULL);
    pthread_mutex_unlock(&line->send_lock);
    return gp_line_is_lost(line) ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}
