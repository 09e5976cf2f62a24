// The list of lines, and the loss of one. line.h says how a line works.
#define _GNU_SOURCE
#include "line.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define LAST_WORDS_MS 300  // for gpupool run to say why the connection broke

struct line *gp_lines[GP_SERVERS_MAX];
int gp_line_count;
struct line *gp_only_line;

// Whether it was not before.
static bool note_lost(const struct line *line) {
    bool *reached = &gp_reached[line->link->server];
    if (!__atomic_exchange_n(reached, false, __ATOMIC_RELAXED)) return false;
    __atomic_fetch_sub(&gp_servers_left, 1, __ATOMIC_RELAXED);
    return true;
}

void gp_line_lose_one(struct line *line) {
    if (!note_lost(line)) return;
    shutdown(line->link->socket, SHUT_RDWR);
    gp_lanes_end(__atomic_load_n(&line->up, __ATOMIC_ACQUIRE));
    gp_lanes_end(__atomic_load_n(&line->down, __ATOMIC_ACQUIRE));
}

void gp_line_carried(struct line *line, uint64_t size) {
    uint64_t before = __atomic_fetch_add(&line->carried, size, __ATOMIC_RELAXED);
    if (before < LANES_PAY && before + size >= LANES_PAY) gp_hooks.open_lanes(line);
}

// All servers at once: what ends the lease ends all of its sessions.
static void lose_all(const char *reason) {
    static int said;
    for (int at = 0; at < gp_line_count; at++) {
        if (gp_lines[at] != NULL) gp_line_lose_one(gp_lines[at]);
    }
    if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED)) gp_say("the GPU is lost: %s", reason);
}

void gp_line_lose(struct line *line, const char *why) {
    if (gp_line_is_lost(line)) return;
    gp_line_lose_one(line);
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
    for (int at = 0; at < gp_line_count; at++) {
        if (gp_lines[at] == NULL) continue;
        note_lost(gp_lines[at]);
        close(gp_lines[at]->link->socket);
        gp_lines[at]->link->socket = -1;
        gp_lanes_forked(gp_lines[at]->up);
        gp_lanes_forked(gp_lines[at]->down);
    }
    if (gp_agent_socket >= 0) close(gp_agent_socket);
    gp_agent_socket = -1;
}

bool gp_line_still_there(struct line *line) {
    const char *reason = gp_ask_agent(0);
    if (reason != NULL) lose_all(reason);
    if (!gp_line_is_lost(line) && gp_peer_is_dead(line->link)) {
        gp_line_lose(line, "the server does not answer any more");
    }
    return !gp_line_is_lost(line);
}
