// Answers of a worker, and the threads that wait for them. line.h says how a line works.
#define _GNU_SOURCE
#include "line.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// So long an answer is awaited awake: the longer while that was worth it lately, where there are
// processors for both sides.
#define SPIN_NS 30000
#define SPIN_LONG_NS 700000
#define SPIN_PAUSE 16
#define PROCESSORS_MIN 4
#define LOOK_MS 1000         // between looks whether the server is still there
#define BODY_MAX (64u << 20)
#define MIRROR_MAX (2u << 20)   // bytes at a time: see mirrors.py
#define DOWNLOADS_MAX 65536
#define DOWNLOAD_BYTES_MAX ((size_t)512 << 20)  // which rest in the worker's memory

enum { REPLY = 1, DATA = 2, NOTICE = 3, MIRROR = 4, PRINTED = 5, HOST = 6, PART = 7, STRIPE = 0x100 };

struct answer {
    uint32_t kind;
    int32_t status;
    uint64_t request;
    uint32_t body;
    int32_t failed_op;  // whose error this is, when an earlier call's
    uint64_t bulk;
};

static bool wait_readable(struct line *line, int64_t deadline_spin) {
    struct pollfd entries[2] = {{.fd = line->link->socket, .events = POLLIN}};
    do {
        if (poll(entries, 1, 0) > 0) return true;
    } while (gp_now_ns() < deadline_spin);
    for (;;) {
        // A negative descriptor is left out.
        entries[1] = (struct pollfd){.fd = gp_agent_socket, .events = POLLIN};
        int found = poll(entries, 2, LOOK_MS);
        if (found < 0 && errno != EINTR) return false;
        if (found > 0 && entries[0].revents) return true;
        if (!gp_line_still_there(line)) return false;
    }
}

// Until when to wait awake. By the one thread that reads.
static int64_t spin_until(struct line *line) {
    static int processors;
    if (__atomic_load_n(&processors, __ATOMIC_RELAXED) == 0) {
        __atomic_store_n(&processors, (int)sysconf(_SC_NPROCESSORS_ONLN), __ATOMIC_RELAXED);
    }
    bool is_long = line->spin_pause == 0 && __atomic_load_n(&processors, __ATOMIC_RELAXED) >= PROCESSORS_MIN;
    if (line->spin_pause > 0) line->spin_pause--;
    return gp_now_ns() + (is_long ? SPIN_LONG_NS : SPIN_NS);
}

static bool read_some(struct line *line, void *target, size_t size, size_t *count) {
    int64_t spin = spin_until(line);
    for (;;) {
        ssize_t got = gp_receive(line->link, target, size);
        if (got > 0) {
            if (gp_now_ns() > spin) line->spin_pause = SPIN_PAUSE;
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

// Read the bulk bytes of an answer: a stripe comes by the lanes.
static bool read_bulk(struct line *line, const struct answer *head, void *target) {
    if (head->bulk >= GP_STRIPE_MIN) gp_line_carried(line, head->bulk);
    if ((head->kind & STRIPE) == 0) return read_exactly(line, target, head->bulk);
    struct gp_lanes *lanes = __atomic_load_n(&line->down, __ATOMIC_ACQUIRE);
    if (lanes == NULL) return false;
    gp_lanes_receive(lanes, target, 0, head->bulk);
    int over;
    while ((over = gp_lanes_wait(lanes, LOOK_MS)) == 0) {
        if (gp_line_still_there(line) && gp_lanes_are_dead(lanes)) gp_lanes_end(lanes);
    }
    return over > 0;
}

static struct download **find_download(struct line *line, uint64_t id) {
    struct download **at = &line->downloads;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    return at;
}

// Read the bytes of a download. It is awaited until they are there: a free of the memory that they
// go to waits for that, see gp_drain.
static bool read_download(struct line *line, const struct answer *head) {
    pthread_mutex_lock(&line->read_lock);
    struct download *found = *find_download(line, head->request);
    pthread_mutex_unlock(&line->read_lock);
    if (found == NULL || found->size != head->bulk || head->body != 0) return false;
    if (!read_bulk(line, head, gp_hooks.mapped_alias(found->target))) return false;
    gp_hooks.mapped_filled(found->target, found->size);
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
    if (!read_bulk(line, head, gp_hooks.mapped_alias(target))) return false;
    gp_hooks.mapped_filled(target, head->bulk);
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
    gp_hooks.mapped_arrived(head->request, offset, bytes, mask > 0 ? which : NULL, size);
    return true;
}

// Print what a kernel printed. As the driver does: by the C library's stream, in turn with what the
// program prints.
static bool read_printed(struct line *line, const struct answer *head) {
    FILE *to = head->request == STDERR_FILENO ? stderr : stdout;
    char text[1024];
    for (size_t left = head->body; left > 0;) {
        size_t part = left < sizeof text ? left : sizeof text;
        if (!read_exactly(line, text, part)) return false;
        if (isatty(fileno(to))) gp_make_visible(text, part);
        fwrite(text, 1, part, to);
        left -= part;
    }
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
    if (head.kind == PRINTED) return read_printed(line, &head);
    if ((head.kind & ~STRIPE) == DATA) return read_download(line, &head);
    if ((head.kind & ~STRIPE) == PART) return read_part(line, &head);
    if (head.kind == MIRROR) return read_mirror(line, &head);
    if (head.kind == HOST) {
        uint64_t ticket;
        if (head.body != sizeof ticket || !read_exactly(line, &ticket, sizeof ticket)) return false;
        if (!gp_hooks.host_arrived(line->link->server, head.request, head.status, ticket)) return false;
        pthread_mutex_lock(&line->read_lock);
        line->announced.done = true;
        pthread_mutex_unlock(&line->read_lock);
        return true;
    }
    if (head.kind != REPLY) return false;
    pthread_mutex_lock(&line->read_lock);
    struct gp_request **at = &line->waiting;
    while (*at != NULL && (*at)->id != head.request) at = &(*at)->next;
    struct gp_request *request = *at;
    if (request != NULL) *at = request->next;
    pthread_mutex_unlock(&line->read_lock);
    if (request == NULL) return false;
    bool whole = head.bulk == request->bulk_size - request->bulk_read;
    bool good = whole || (head.bulk == 0 && head.status != 0);
    if (good && request->grows && head.body > 0) {
        request->body = malloc(head.body);
        request->capacity = request->body == NULL ? 0 : head.body;
    }
    good = good && head.body <= request->capacity;
    good = good && read_exactly(line, request->body, head.body);
    // What a short answer leaves out is zero, and not what the caller's stack held before.
    if (good && head.body < request->capacity) {
        memset((unsigned char *)request->body + head.body, 0, request->capacity - head.body);
    }
    if (good && head.bulk > 0) {
        unsigned char *target = (unsigned char *)request->bulk + request->bulk_read;
        good = read_exactly(line, gp_hooks.mapped_alias(target), head.bulk);
        if (good) gp_hooks.mapped_filled(target, head.bulk);
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

void gp_line_await(struct line *line, struct gp_request *request) {
    pthread_mutex_lock(&line->read_lock);
    while (request == NULL || !request->done) {
        if (line->reading) {
            if (request == NULL) break;
            // Also when the line is lost: the answer to just this request may be coming in.
            pthread_cond_wait(&line->answered, &line->read_lock);
            continue;
        }
        if (gp_line_is_lost(line)) {
            fail_waiting(line);
            break;
        }
        line->reading = true;
        pthread_mutex_unlock(&line->read_lock);
        bool good = read_answer(line);
        if (!good) gp_line_lose(line, "the connection to the server broke");
        pthread_mutex_lock(&line->read_lock);
        line->reading = false;
        if (!good) fail_waiting(line);
        pthread_cond_broadcast(&line->answered);
        if (request == NULL) break;
    }
    pthread_mutex_unlock(&line->read_lock);
}

void gp_await_host(void) {
    struct line *line = gp_line_here();
    gp_line_await(line, &line->announced);
    // What is announced from now on is seen by the next call; the rest is queued already.
    pthread_mutex_lock(&line->read_lock);
    line->announced.done = false;
    pthread_mutex_unlock(&line->read_lock);
}

// --- downloads ------------------------------------------------------------------------------------

uint64_t gp_expect_download(void *target, size_t size, uint64_t stream) {
    struct download *entry = malloc(sizeof *entry);
    if (entry == NULL) return 0;
    *entry = (struct download){gp_new_id(), target, size, stream, NULL};
    uint64_t id = entry->id;
    struct line *line = gp_line_here();
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

bool gp_awaits_download(int server, const void *start, size_t size) {
    struct line *line = gp_lines[server];
    if (line == NULL) return false;
    const unsigned char *first = start, *last = first + size;
    bool found = false;
    pthread_mutex_lock(&line->read_lock);
    for (struct download *at = line->downloads; at != NULL && !found; at = at->next) {
        found = at->target < last && first < at->target + at->size;
    }
    pthread_mutex_unlock(&line->read_lock);
    return found;
}
