// Calls that wait for a worker's reply, and the first of each line. line.h says how a line works.
#define _GNU_SOURCE
#include "line.h"

#include <stdlib.h>

unsigned long gp_waits[GP_WAITS];

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
        gp_line_send(line, NULL, 0);
        pthread_mutex_lock(&line->line_lock);
    }
    unsigned char *at = gp_line_append(line, op, 1, size, device);
    memcpy(at, &request->id, 8);
    if (count > 0) memcpy(at + 8, values, (size_t)count * 8);
    if (text_size) memcpy(at + 8 + (size_t)count * 8, text, text_size);
    gp_line_send(line, bulk, bulk_size);
    pthread_mutex_unlock(&line->send_lock);
}

void gp_line_ask(struct line *line, int device, struct gp_request *request, int op,
                 const uint64_t *values, int count) {
    ask(line, device, request, op, values, count, NULL, 0, NULL, 0);
}

int gp_hear(struct gp_request *request) {
    gp_line_await(request->line, request);
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
    gp_line_gate(op, 0, 0);
    ask(gp_line_here(), gp_place(), request, op, values, count, NULL, 0, NULL, 0);
}

int gp_exchange(struct gp_request *request, int op, const uint64_t *values, int count,
                const void *text, size_t text_size, const void *bulk, size_t bulk_size) {
    gp_line_gate(op, text_size, bulk_size);
    return exchange(gp_line_here(), gp_place(), request, op, values, count, text, text_size, bulk,
                    bulk_size);
}

int gp_call(int op, const uint64_t *values, int count, void *reply, size_t capacity) {
    struct gp_request request = {.body = reply, .capacity = capacity};
    return gp_exchange(&request, op, values, count, NULL, 0, NULL, 0);
}

// --- the start ------------------------------------------------------------------------------------

int gp_wire_open(struct gp_link *link, struct gp_request *hello) {
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
    gp_only_line = gp_lines[link->server] = line;
    gp_line_count = link->server + 1;
    __atomic_store_n(&gp_reached[link->server], true, __ATOMIC_RELAXED);
    __atomic_fetch_add(&gp_servers_left, 1, __ATOMIC_RELAXED);
    uint64_t values[2] = {GP_PROTOCOL, GP_CUDA_INTERFACE};
    return exchange(line, -1, hello, GP_HELLO, values, 2, NULL, 0, NULL, 0);
}

// Workers that are older than a record or a call end a session that uses it.
static uint64_t known_records[GP_SERVERS_MAX];

// Not for the program: an older worker has no such limit, and says so.
void gp_wire_ask_records(int server) {
    uint64_t limit[1] = {GP_KNOWN_RECORDS}, reply[1] = {0};
    struct gp_request request = {.body = reply, .capacity = sizeof reply};
    ask(gp_lines[server], -1, &request, GP_GET_LIMIT, limit, 1, NULL, 0, NULL, 0);
    known_records[server] = gp_hear(&request) == GP_SUCCESS ? reply[0] : 0;
}

bool gp_knows_at(int server, int op) {
    uint64_t known = known_records[server];
    return op < GP_FIRST_CALL ? (uint32_t)known >= (uint32_t)op
                              : known >> 32 > (uint64_t)(op - GP_FIRST_CALL);
}

bool gp_knows(int op) { return gp_knows_at(gp_here(), op); }

int gp_wire_run(int server) {
    return gp_start_thread(gp_line_flush_late, gp_lines[server], 0) ? GP_OUT_OF_MEMORY : GP_SUCCESS;
}

void gp_wire_prefer(int server) { gp_only_line = gp_lines[server]; }
