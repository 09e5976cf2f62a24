// The line to a worker: calls in one total order, replies to whoever waits, downloads. There is one
// for each server of the lease; route.c says which one a thread's calls take.
//
// A frame to the worker is a header of 16 bytes, a body of records and bulk bytes that belong to
// its last record. Records are appended to a buffer, which leaves when somebody waits, when it
// holds FLUSH_SIZE bytes, or FLUSH_DELAY_NS after its first record. There is no thread that
// reads: whoever waits reads, for itself and for the others.
#define _GNU_SOURCE
#include "core.h"
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FRAME_MAGIC 0x47504331U  // "1CPG"
#define BUFFER_SIZE (512 * 1024)
#define FLUSH_SIZE (32 * 1024)
#define FLUSH_DELAY_NS 50000
#define SPIN_NS 30000
#define LOOK_MS 1000         // between looks whether the server is still there
#define LOOK_SENDING_MS 200  // the same of who sends, whom what gpupool run says does not wake
#define LAST_WORDS_MS 300    // for gpupool run to say why the connection broke
#define READ_SIZE (64 * 1024)
#define BODY_MAX (64u << 20)
#define DOWNLOADS_MAX 65536
#define DOWNLOAD_BYTES_MAX ((size_t)512 << 20)  // which rest in the worker's memory
#define MIRROR_MAX (2u << 20)   // bytes at a time: see mirrors.py
#define LEAVING_NS 200000000    // for what is left to send when the program ends

enum { REPLY = 1, DATA = 2, NOTICE = 3, MIRROR = 4, PRINTED = 5, HOST = 6, PART = 7 };

struct frame {
    uint32_t magic, body;
    uint64_t bulk;
};

struct record {
    uint16_t op, flags;
    uint32_t size;
};

struct answer {
    uint32_t kind;
    int32_t status;
    uint64_t request;
    uint32_t body;
    int32_t failed_op;  // whose error this is, when an earlier call's
    uint64_t bulk;
};

struct buffer {
    size_t used;  // behind the frame's header
    unsigned char bytes[BUFFER_SIZE];
};

struct download {
    uint64_t id;
    unsigned char *target;
    size_t size;
    uint64_t stream;
    struct download *next;
};

struct line {
    struct gp_link *link;
    pthread_mutex_t line_lock;  // the open buffer
    pthread_mutex_t send_lock;  // taken before line_lock
    pthread_cond_t dirty;
    struct buffer *open_buffer, *spare_buffer;
    int device;  // that the worker will have when it reaches the end of the buffer
    uint64_t position;
    bool flusher_waits;

    pthread_mutex_t read_lock;
    pthread_cond_t answered;
    bool reading;
    struct gp_request *waiting;
    struct download *downloads, **downloads_end;  // in the order in which they were asked for
    unsigned download_count;
    size_t download_bytes;
    unsigned char read_buffer[READ_SIZE];
    size_t read_start, read_end;
    unsigned char *mirror;  // what kernels wrote, as it comes in
    int64_t leaving;  // until when to send, 0 for ever: the program ends
    struct gp_request announced;  // done: a host function's turn has come
};

static struct line *lines[GP_SERVERS_MAX];  // NULL for servers that this process does not use
static int line_count;                      // up to the last that is used
static __thread struct line *opened;        // from gp_open to gp_close
unsigned long gp_waits[GP_WAITS];

static struct line *only;                   // unless there are several

static struct line *here(void) {
    return __builtin_expect(gp_several, 0) ? lines[gp_here()] : only;
}

static bool is_lost(const struct line *line) { return gp_is_lost_at(line->link->server); }

// Whether it was not before.
static bool note_lost(const struct line *line) {
    if (!__atomic_exchange_n(&gp_reached[line->link->server], false, __ATOMIC_RELAXED)) return false;
    __atomic_fetch_sub(&gp_servers_left, 1, __ATOMIC_RELAXED);
    return true;
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void lose_one(struct line *line) {
    if (note_lost(line)) shutdown(line->link->socket, SHUT_RDWR);
}

// All servers at once: what ends the lease ends all of its sessions.
static void lose_all(const char *reason) {
    static int said;
    for (int at = 0; at < line_count; at++) {
        if (lines[at] != NULL) lose_one(lines[at]);
    }
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)) gp_say("the GPU is lost: %s", reason);
}

static void lose(struct line *line, const char *why) {
    if (is_lost(line)) return;
    lose_one(line);
    const char *reason = gp_ask_agent(LAST_WORDS_MS);
    char text[200];
    snprintf(text, sizeof text, gp_several ? "%s (server %.64s)" : "%s", why, line->link->name);
    if (reason == NULL) gp_tell_agent(text);
    if (reason != NULL || !gp_several) {
        lose_all(reason != NULL ? reason : text);
    } else {
        gp_say("the GPUs of one server are lost: %s", text);
    }
}

void gp_wire_forked(void) {
    // Only this thread is left, and the locks may be held by threads that are not.
    for (int at = 0; at < line_count; at++) {
        if (lines[at] == NULL) continue;
        note_lost(lines[at]);
        close(lines[at]->link->socket);
        lines[at]->link->socket = -1;
    }
    if (gp_agent_socket >= 0) close(gp_agent_socket);
    gp_agent_socket = -1;
}

// --- reading --------------------------------------------------------------------------------------

// Look for what ends a session without a word on its connection.
static bool still_there(struct line *line) {
    const char *reason = gp_ask_agent(0);
    if (reason != NULL) lose_all(reason);
    if (!is_lost(line) && gp_peer_is_dead(line->link)) {
        lose(line, "the server does not answer any more");
    }
    return !is_lost(line);
}

static bool wait_readable(struct line *line, int64_t deadline_spin) {
    struct pollfd entries[2] = {{.fd = line->link->socket, .events = POLLIN}};
    do {
        if (poll(entries, 1, 0) > 0) return true;
    } while (now_ns() < deadline_spin);
    for (;;) {
        // A negative descriptor is left out.
        entries[1] = (struct pollfd){.fd = gp_agent_socket, .events = POLLIN};
        int found = poll(entries, 2, LOOK_MS);
        if (found < 0 && errno != EINTR) return false;
        if (found > 0 && entries[0].revents) return true;
        if (!still_there(line)) return false;
    }
}

static bool read_some(struct line *line, void *target, size_t size, size_t *count) {
    int64_t spin = now_ns() + SPIN_NS;
    for (;;) {
        ssize_t got = gp_receive(line->link, target, size);
        if (got > 0) {
            *count = (size_t)got;
            return true;
        }
        if (got == 0) return false;
        if (errno == EINTR) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
        if (!wait_readable(line, spin)) return false;
    }
}

static bool read_exactly(struct line *line, void *target, size_t size) {
    unsigned char *at = target;
    while (size > 0) {
        size_t have = line->read_end - line->read_start;
        if (have == 0 && size >= READ_SIZE) {
            size_t count;
            if (!read_some(line, at, size, &count)) return false;
            at += count;
            size -= count;
            continue;
        }
        if (have == 0) {
            line->read_start = 0;
            if (!read_some(line, line->read_buffer, READ_SIZE, &line->read_end)) {
                line->read_end = 0;
                return false;
            }
            have = line->read_end;
        }
        size_t part = have < size ? have : size;
        memcpy(at, line->read_buffer + line->read_start, part);
        line->read_start += part;
        at += part;
        size -= part;
    }
    return true;
}

static struct download **find_download(struct line *line, uint64_t id) {
    struct download **at = &line->downloads;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    return at;
}

// Read the bytes of a download. It is awaited until they are there: whoever frees the memory that
// they go to waits for that, see gp_drain.
static bool read_download(struct line *line, const struct answer *head) {
    pthread_mutex_lock(&line->read_lock);
    struct download *found = *find_download(line, head->request);
    pthread_mutex_unlock(&line->read_lock);
    if (found == NULL || found->size != head->bulk || head->body != 0) return false;
    if (!read_exactly(line, gp_mapped_alias(found->target), found->size)) return false;
    gp_mapped_filled(found->target, found->size);
    pthread_mutex_lock(&line->read_lock);
    struct download **at = find_download(line, head->request);
    *at = found->next;
    if (found->next == NULL) line->downloads_end = at;
    line->download_count--;
    line->download_bytes -= found->size;
    pthread_mutex_unlock(&line->read_lock);
    free(found);
    return true;
}

// Read some of the bytes that a request wants; more follow, or its reply.
static bool read_part(struct line *line, const struct answer *head) {
    pthread_mutex_lock(&line->read_lock);
    struct gp_request *request = line->waiting;
    while (request != NULL && request->id != head->request) request = request->next;
    pthread_mutex_unlock(&line->read_lock);
    if (request == NULL || head->body != 0) return false;
    if (head->bulk > request->bulk_size - request->bulk_read) return false;
    unsigned char *target = (unsigned char *)request->bulk + request->bulk_read;
    if (!read_exactly(line, gp_mapped_alias(target), head->bulk)) return false;
    gp_mapped_filled(target, head->bulk);
    request->bulk_read += head->bulk;
    return true;
}

// Read what kernels wrote to mapped memory: where, which of the bytes if not all, and the bytes.
// Not into the memory itself: another thread that launches would take half of it for the program's.
static bool read_mirror(struct line *line, const struct answer *head) {
    size_t size = head->bulk, mask = head->body > 8 ? (size + 7) / 8 : 0;
    uint64_t offset;
    if (head->bulk > MIRROR_MAX || head->body != sizeof offset + mask) return false;
    if (line->mirror == NULL) line->mirror = malloc(MIRROR_MAX + MIRROR_MAX / 8);
    if (line->mirror == NULL) return false;
    unsigned char *bytes = line->mirror, *which = line->mirror + MIRROR_MAX;
    if (!read_exactly(line, &offset, sizeof offset)) return false;
    if (!read_exactly(line, which, mask) || !read_exactly(line, bytes, size)) return false;
    gp_mapped_arrived(head->request, offset, bytes, mask > 0 ? which : NULL, size);
    return true;
}

// Read one answer and give it to whom it belongs. Called by the one thread that reads, with
// read_lock free while it waits; returns false when the connection is of no use any more.
static bool read_answer(struct line *line) {
    struct answer head;
    if (!read_exactly(line, &head, sizeof head)) return false;
    if (head.body > BODY_MAX) return false;
    if (head.kind == NOTICE) {
        char text[1024];
        size_t part = head.body < sizeof text - 1 ? head.body : sizeof text - 1;
        if (head.body > part || !read_exactly(line, text, part)) return false;
        text[part] = '\0';
        gp_say("%s", text);
        return true;
    }
    if (head.kind == PRINTED) {
        // As the driver does: by the C library's stream, in turn with what the program prints.
        FILE *to = head.request == STDERR_FILENO ? stderr : stdout;
        for (char text[1024]; head.body > 0;) {
            size_t part = head.body < sizeof text ? head.body : sizeof text;
            if (!read_exactly(line, text, part)) return false;
            fwrite(text, 1, part, to);
            head.body -= (uint32_t)part;
        }
        return true;
    }
    if (head.kind == DATA) return read_download(line, &head);
    if (head.kind == PART) return read_part(line, &head);
    if (head.kind == MIRROR) return read_mirror(line, &head);
    if (head.kind == HOST) {
        uint64_t ticket;
        if (head.body != sizeof ticket || !read_exactly(line, &ticket, sizeof ticket)) return false;
        gp_hooks.host_arrived(line->link->server, head.request, head.status, ticket);
        pthread_mutex_lock(&line->read_lock);
        line->announced.done = true;
        pthread_mutex_unlock(&line->read_lock);
        return true;
    }
    pthread_mutex_lock(&line->read_lock);
    struct gp_request **at = &line->waiting;
    while (*at != NULL && (*at)->id != head.request) at = &(*at)->next;
    struct gp_request *request = *at;
    if (request != NULL) *at = request->next;
    pthread_mutex_unlock(&line->read_lock);
    if (head.kind != REPLY || request == NULL) return false;
    bool whole = head.bulk == request->bulk_size - request->bulk_read;
    bool good = whole || (head.bulk == 0 && head.status != 0);
    if (good && request->grows && head.body > 0) {
        request->body = malloc(head.body);
        request->capacity = request->body == NULL ? 0 : head.body;
    }
    good = good && head.body <= request->capacity;
    good = good && read_exactly(line, request->body, head.body);
    if (good && head.bulk > 0) {
        unsigned char *target = (unsigned char *)request->bulk + request->bulk_read;
        good = read_exactly(line, gp_mapped_alias(target), head.bulk);
        if (good) gp_mapped_filled(target, head.bulk);
    }
    if (good && head.failed_op != 0 && gp_verbose()) {
        gp_say("error %d of an earlier asynchronous call, record %d", head.status, head.failed_op);
    }
    pthread_mutex_lock(&line->read_lock);
    request->length = head.body;
    request->status = good ? head.status : GP_DEVICE_UNAVAILABLE;
    request->earlier = head.failed_op != 0;
    request->done = true;
    pthread_mutex_unlock(&line->read_lock);
    return good;
}

static void fail_waiting(struct line *line) {
    for (struct gp_request *at = line->waiting; at != NULL; at = at->next) {
        at->status = GP_DEVICE_UNAVAILABLE;
        at->done = true;
    }
    line->waiting = NULL;
}

// Wait until request is done, or, without one, read one answer if nobody else reads.
static void await(struct line *line, struct gp_request *request) {
    pthread_mutex_lock(&line->read_lock);
    while (request == NULL || !request->done) {
        if (line->reading) {
            if (request == NULL) break;
            // Also when the line is lost: the answer to just this request may be coming in.
            pthread_cond_wait(&line->answered, &line->read_lock);
            continue;
        }
        if (is_lost(line)) {
            fail_waiting(line);
            break;
        }
        line->reading = true;
        pthread_mutex_unlock(&line->read_lock);
        bool good = read_answer(line);
        if (!good) lose(line, "the connection to the server broke");
        pthread_mutex_lock(&line->read_lock);
        line->reading = false;
        if (!good) fail_waiting(line);
        pthread_cond_broadcast(&line->answered);
        if (request == NULL) break;
    }
    pthread_mutex_unlock(&line->read_lock);
}

void gp_await_host(void) {
    struct line *line = here();
    await(line, &line->announced);
    // What is announced from now on is seen by the next call; the rest is queued already.
    pthread_mutex_lock(&line->read_lock);
    line->announced.done = false;
    pthread_mutex_unlock(&line->read_lock);
}

// --- sending --------------------------------------------------------------------------------------

static bool somebody_reads(struct line *line) {
    pthread_mutex_lock(&line->read_lock);
    bool found = line->reading;
    pthread_mutex_unlock(&line->read_lock);
    return found;
}

// Read what the worker said before it closed its end, such as why; then the session is lost.
static void hear_last_words(struct line *line) {
    while (!is_lost(line)) {
        pthread_mutex_lock(&line->read_lock);
        while (line->reading && !is_lost(line)) pthread_cond_wait(&line->answered, &line->read_lock);
        pthread_mutex_unlock(&line->read_lock);
        await(line, NULL);
    }
}

// Send everything; reads answers meanwhile, so that two full socket buffers cannot block each
// other for ever.
static void send_all(struct line *line, struct iovec *parts, int count) {
    int64_t looked = now_ns();
    while (count > 0 && !is_lost(line)) {
        ssize_t sent = gp_send(line->link, parts, count);
        if (sent < 0) {
            if (errno == EINTR) continue;
            if (line->leaving != 0 && now_ns() > line->leaving) {
                lose_one(line);
                return;
            }
            if (errno == EPIPE || errno == ECONNRESET) {
                hear_last_words(line);
                return;
            }
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                lose(line, "the connection to the server broke");
                return;
            }
            bool others = somebody_reads(line);
            struct pollfd entry = {.fd = line->link->socket};
            entry.events = others ? POLLOUT : POLLIN | POLLOUT;
            // A reader that ends meanwhile leaves the reading to us, so the wait has an end.
            if (poll(&entry, 1, 20) == 0 && now_ns() - looked > LOOK_SENDING_MS * 1000000LL) {
                looked = now_ns();
                if (!still_there(line)) return;
            }
            if (!others && (entry.revents & POLLIN)) await(line, NULL);
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

// Send the buffer and bulk bytes behind it; send_lock and line_lock are held, and line_lock is
// released before anything is sent.
static void send_buffer(struct line *line, const void *bulk, size_t bulk_size) {
    struct buffer *full = line->open_buffer;
    line->open_buffer = line->spare_buffer;
    line->open_buffer->used = sizeof(struct frame);
    pthread_mutex_unlock(&line->line_lock);
    struct frame head = {FRAME_MAGIC, (uint32_t)(full->used - sizeof head), bulk_size};
    memcpy(full->bytes, &head, sizeof head);
    struct iovec parts[2] = {
        {full->bytes, full->used},
        {(void *)(uintptr_t)bulk, bulk_size},
    };
    send_all(line, parts, bulk_size ? 2 : 1);
    line->spare_buffer = full;
}

static void flush(struct line *line) {
    pthread_mutex_lock(&line->send_lock);
    pthread_mutex_lock(&line->line_lock);
    if (line->open_buffer != NULL && line->open_buffer->used > sizeof(struct frame)) {
        send_buffer(line, NULL, 0);
    } else {
        pthread_mutex_unlock(&line->line_lock);
    }
    pthread_mutex_unlock(&line->send_lock);
}

void gp_flush(void) { flush(here()); }

// Another thread may hold the locks for long, or this one itself, in whose middle a signal has the
// program end; then what is left is nobody's any more.
void gp_leave(void) {
    for (int at = 0; at < line_count; at++) {
        struct line *line = lines[at];
        if (line == NULL || is_lost(line)) continue;
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LEAVING_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_mutex_timedlock(&line->send_lock, &until) != 0) continue;
        if (pthread_mutex_timedlock(&line->line_lock, &until) == 0) {
            line->leaving = now_ns() + LEAVING_NS;
            if (line->open_buffer->used > sizeof(struct frame)) {
                send_buffer(line, NULL, 0);
            } else {
                pthread_mutex_unlock(&line->line_lock);
            }
            line->leaving = 0;
        }
        pthread_mutex_unlock(&line->send_lock);
    }
}

static void *flush_late(void *argument) {
    struct line *line = argument;
    prctl(PR_SET_TIMERSLACK, 1UL);
    const struct timespec pause = {.tv_nsec = FLUSH_DELAY_NS};
    while (!is_lost(line)) {
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

// Append a record; line_lock is held, and full buffers are sent first.
static unsigned char *append(struct line *line, int op, int flags, size_t size, int device) {
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
static void gate(int op, uint64_t size, uint64_t bulk) {
    if (__builtin_expect(__atomic_load_n(&gp_hosts_pending, __ATOMIC_RELAXED) != 0, 0)) {
        gp_hooks.host_gate(op, size, bulk);
    }
}

unsigned char *gp_open(int op, int flags, size_t size) {
    if (sizeof(struct record) + size > BUFFER_SIZE - 64) return NULL;
    gate(op, size, 0);
    int device = gp_place();
    struct line *line = here();
    if (gp_several) opened = line;
    pthread_mutex_lock(&line->line_lock);
    return append(line, op, flags, sizeof(struct record) + size, device);
}

void gp_close(void) {
    struct line *line = gp_several ? opened : only;
    bool full = line->open_buffer->used >= FLUSH_SIZE;
    if (!full && line->flusher_waits) {
        line->flusher_waits = false;
        pthread_cond_signal(&line->dirty);
    }
    pthread_mutex_unlock(&line->line_lock);
    if (full) flush(line);
}

uint64_t gp_position(void) {
    struct line *line = here();
    pthread_mutex_lock(&line->line_lock);
    uint64_t found = line->position;
    pthread_mutex_unlock(&line->line_lock);
    return found;
}

int gp_post(int op, const uint64_t *values, int count) {
    if (__atomic_load_n(&gp_mapped_count, __ATOMIC_RELAXED)) gp_push_mapped();
    unsigned char *at = gp_open(op, 0, (size_t)count * 8);
    memcpy(at, values, (size_t)count * 8);
    gp_close();
    return gp_several && gp_is_lost() ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}

int gp_post_bulk(int op, const uint64_t *values, int count, const void *bulk, size_t size) {
    gate(op, 0, size);
    struct line *line = here();
    int device = gp_place();
    pthread_mutex_lock(&line->send_lock);
    pthread_mutex_lock(&line->line_lock);
    // append() would take send_lock again, so room is made here.
    if (line->open_buffer->used + (size_t)count * 8 + 64 > BUFFER_SIZE) {
        send_buffer(line, NULL, 0);
        pthread_mutex_lock(&line->line_lock);
    }
    unsigned char *at = append(line, op, 0, sizeof(struct record) + (size_t)count * 8, device);
    memcpy(at, values, (size_t)count * 8);
    send_buffer(line, bulk, size);
    pthread_mutex_unlock(&line->send_lock);
    return is_lost(line) ? GP_DEVICE_UNAVAILABLE : GP_SUCCESS;
}

static void ask(struct line *line, int device, struct gp_request *request, int op,
                const uint64_t *values, int count, const void *text, size_t text_size,
                const void *bulk, size_t bulk_size) {
    static uint64_t next_request = 1;
    if (op < GP_WAITS) __atomic_fetch_add(&gp_waits[op], 1, __ATOMIC_RELAXED);
    request->id = __atomic_fetch_add(&next_request, 1, __ATOMIC_RELAXED);
    request->status = GP_DEVICE_UNAVAILABLE;
    request->done = false;
    request->length = request->bulk_read = 0;
    request->earlier = false;
    request->line = line;
    pthread_mutex_lock(&line->read_lock);
    request->next = line->waiting;
    line->waiting = request;
    pthread_mutex_unlock(&line->read_lock);
    size_t size = sizeof(struct record) + 8 + (size_t)count * 8 + text_size;
    pthread_mutex_lock(&line->send_lock);
    pthread_mutex_lock(&line->line_lock);
    if (line->open_buffer->used + size + 64 > BUFFER_SIZE) {
        send_buffer(line, NULL, 0);
        pthread_mutex_lock(&line->line_lock);
    }
    unsigned char *at = append(line, op, 1, size, device);
    memcpy(at, &request->id, 8);
    if (count > 0) memcpy(at + 8, values, (size_t)count * 8);
    if (text_size) memcpy(at + 8 + (size_t)count * 8, text, text_size);
    send_buffer(line, bulk, bulk_size);
    pthread_mutex_unlock(&line->send_lock);
}

int gp_hear(struct gp_request *request) {
    await(request->line, request);
    return request->status;
}

// Whether the program gets to know of a failure: this library asks some things by itself.
static bool is_of_the_program(int op, int status) {
    switch (op) {
        case GP_HELLO: case GP_LOAD_KNOWN: case GP_MAP_HOST: case GP_MAP_FREE: case GP_MAP_SHARED:
        case GP_PEER_INTRODUCE: case GP_PEER_CONNECT:
            return false;
        default:
            return status != GP_NOT_READY;
    }
}

static int exchange(struct line *line, int device, struct gp_request *request, int op,
                    const uint64_t *values, int count, const void *text, size_t text_size,
                    const void *bulk, size_t bulk_size) {
    ask(line, device, request, op, values, count, text, text_size, bulk, bulk_size);
    int status = gp_hear(request);
    if (status != GP_SUCCESS && is_of_the_program(op, status)) gp_log_status(status, request->earlier);
    return status;
}

void gp_ask(struct gp_request *request, int op, const uint64_t *values, int count) {
    gate(op, 0, 0);
    ask(here(), gp_place(), request, op, values, count, NULL, 0, NULL, 0);
}

int gp_exchange(struct gp_request *request, int op, const uint64_t *values, int count,
                const void *text, size_t text_size, const void *bulk, size_t bulk_size) {
    gate(op, text_size, bulk_size);
    return exchange(here(), gp_place(), request, op, values, count, text, text_size, bulk,
                    bulk_size);
}

int gp_call(int op, const uint64_t *values, int count, void *reply, size_t capacity) {
    struct gp_request request = {.body = reply, .capacity = capacity};
    return gp_exchange(&request, op, values, count, NULL, 0, NULL, 0);
}

// --- downloads ------------------------------------------------------------------------------------

uint64_t gp_expect_download(void *target, size_t size, uint64_t stream) {
    struct download *entry = malloc(sizeof *entry);
    if (entry == NULL) return 0;
    *entry = (struct download){gp_new_id(), target, size, stream, NULL};
    uint64_t id = entry->id;
    struct line *line = here();
    pthread_mutex_lock(&line->read_lock);
    bool room = line->download_count < DOWNLOADS_MAX &&
                size <= DOWNLOAD_BYTES_MAX - line->download_bytes;
    if (room) {
        *line->downloads_end = entry;
        line->downloads_end = &entry->next;
        line->download_count++;
        line->download_bytes += size;
    }
    pthread_mutex_unlock(&line->read_lock);
    if (!room) free(entry);
    return room ? id : 0;
}

static bool awaits(struct line *line, const void *start, size_t size) {
    const unsigned char *first = start, *last = first + size;
    bool found = false;
    pthread_mutex_lock(&line->read_lock);
    for (struct download *at = line->downloads; at != NULL && !found; at = at->next) {
        found = at->target < last && first < at->target + at->size;
    }
    pthread_mutex_unlock(&line->read_lock);
    return found;
}

int gp_drain(const void *start, size_t size) {
    for (int at = 0; at < line_count; at++) {
        if (lines[at] == NULL || !awaits(lines[at], start, size)) continue;
        // Of a server that is lost nothing comes any more, and the others go on.
        if (gp_several && is_lost(lines[at])) continue;
        GP_ROUTE(gp_first_device(at));
        GP_CHECK(gp_synchronize(GP_DRAIN, 0));
    }
    return GP_SUCCESS;
}

// --- the start ------------------------------------------------------------------------------------

static int start(struct gp_link *link) {
    struct line *line = calloc(1, sizeof *line);
    if (line == NULL) return GP_OUT_OF_MEMORY;
    line->link = link;
    line->downloads_end = &line->downloads;
    pthread_mutex_init(&line->line_lock, NULL);
    pthread_mutex_init(&line->send_lock, NULL);
    pthread_mutex_init(&line->read_lock, NULL);
    pthread_cond_init(&line->dirty, NULL);
    pthread_cond_init(&line->answered, NULL);
    line->open_buffer = malloc(sizeof *line->open_buffer);
    line->spare_buffer = malloc(sizeof *line->spare_buffer);
    if (line->open_buffer == NULL || line->spare_buffer == NULL) return GP_OUT_OF_MEMORY;
    line->open_buffer->used = line->spare_buffer->used = sizeof(struct frame);
    only = lines[link->server] = line;
    line_count = link->server + 1;
    __atomic_store_n(&gp_reached[link->server], true, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gp_servers_left, 1, __ATOMIC_RELAXED);
    struct gp_request request = {.grows = true};
    uint64_t values[2] = {GP_PROTOCOL, GP_CUDA_INTERFACE};
    int status = exchange(line, -1, &request, GP_HELLO, values, 2, NULL, 0, NULL, 0);
    if (status == GP_SUCCESS) {
        status = gp_read_snapshot(link->server, request.body, request.length);
    }
    free(request.body);
    if (status != GP_SUCCESS) return status;
    return gp_start_thread(flush_late, line, 0) ? GP_OUT_OF_MEMORY : GP_SUCCESS;
}

int gp_wire_start(void) {
    for (int at = 0; at < gp.server_count; at++) {
        if (gp_links[at].socket < 0) {
            gp_skip_devices(gp_links[at].devices);
        } else {
            GP_CHECK(start(&gp_links[at]));
        }
    }
    GP_CHECK(gp_choose_devices());
    if (gp.device_count > 0) only = lines[gp.devices[0].server];
    return GP_SUCCESS;
}
