// The lanes of a line are opened once it has carried much: by a thread of their own, so that no
// call waits for them. Without any, all bytes go by the line.
#define _GNU_SOURCE
#include "line.h"
#include "hash.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define DIRECTIONS 2

struct offer {
    uint8_t id[DIRECTIONS][16];
    uint64_t count;
};

// GPUPOOL_LANES, or what pays: a thread for each, beside those of the program.
static uint64_t wanted(void) {
    const char *text = getenv("GPUPOOL_LANES");
    long count = text != NULL ? atol(text) : sysconf(_SC_NPROCESSORS_ONLN) / 2;
    if (count > GP_LANES_MAX) count = GP_LANES_MAX;
    return text == NULL && count < 2 ? 0 : count < 0 ? 0 : (uint64_t)count;
}

// What proves that a connection is of this session: nobody else knows the ticket.
static void make_ticket(const struct gp_link *link, const uint8_t id[16], uint8_t ticket[32]) {
    uint8_t text[4 + 16];
    memcpy(text, "lane", 4);
    memcpy(text + 4, id, 16);
    gp_hmac_sha256(link->ticket, sizeof link->ticket, text, sizeof text, ticket);
}

static bool open_one(struct line *line, struct gp_lanes *lanes, const struct offer *offer, int way) {
    uint8_t ticket[32];
    make_ticket(line->link, offer->id[way], ticket);
    for (uint64_t at = 0; at < offer->count; at++) {
        struct gp_link made;
        if (gp_line_is_lost(line)) return false;
        if (!gp_link_again(line->link, offer->id[way], ticket, &made)) return false;
        if (!gp_lanes_add(lanes, &made)) {
            close(made.socket);
            return false;
        }
    }
    return true;
}

static void *open_all(void *argument) {
    struct line *line = argument;
    struct offer offer = {0};
    struct gp_request request = {.body = &offer, .capacity = sizeof offer};
    uint64_t count[1] = {wanted()};
    gp_line_ask(line, -1, &request, GP_LANES, count, 1);
    if (gp_hear(&request) != GP_SUCCESS || offer.count == 0 || offer.count > count[0]) return NULL;
    int most = (int)offer.count;
    struct gp_lanes *down = gp_lanes_new(false, most, 0), *up = gp_lanes_new(true, most, 0);
    if (down == NULL || up == NULL) return NULL;
    // The worker sends by these as soon as it has all of them.
    __atomic_store_n(&line->down, down, __ATOMIC_RELEASE);
    bool good = open_one(line, down, &offer, 1) && open_one(line, up, &offer, 0);
    if (good) {
        __atomic_store_n(&line->up, up, __ATOMIC_RELEASE);
    } else {
        gp_lanes_end(up);
    }
    if (gp_line_is_lost(line)) {
        gp_lanes_end(up);
        gp_lanes_end(down);
    } else if (gp_verbose()) {
        gp_say(good ? "%d connections each way for large copies" : "no further connections", (int)offer.count);
    }
    return NULL;
}

static void open_lanes(void *opened) {
    struct line *line = opened;
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getpeername(line->link->socket, (struct sockaddr *)&address, &size) != 0) return;
    // A Unix socket is not encrypted, and fast.
    if (address.ss_family == AF_UNIX || wanted() == 0) return;
    if (!gp_knows_at(line->link->server, GP_LANES)) return;
    gp_start_thread(open_all, line, 0);
}

GP_AT_LOAD register_hooks(void) { gp_hooks.open_lanes = open_lanes; }
